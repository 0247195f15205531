"""Discrete CQL: conservative double Q-learning (Kumar et al. 2020, "Conservative Q-Learning", 2006.04779).

DQN with a penalty that presses the values of all actions down and those of the data's actions up, so that actions
which the data do not have are not overestimated.

Differences from the paper:
  * On double DQN; the paper's experiments with Atari are on QR-DQN.
  * Adam and a Huber loss, as in this library's DQN, with defaults for small problems.
  * Epsilon falls linearly over each actor's steps, of all its environments, where the agent explores.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of discrete CQL, in addition to those of `ReplayConfig`.

    Attributes:
        n_step: 1, for which the data's later actions do not matter.
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        duelling: separate value and advantage streams (Wang et al. 2016).
        double: select the bootstrap action with the online network (van Hasselt et al. 2016).
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
        cql_weight: alpha, the penalty's weight beside the TD loss; 0 is DQN.
    """

    n_step: Count = 1
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False
    duelling: bool = False
    double: bool = True
    huber_delta: Positive | None = 1.0
    cql_weight: NotNegative = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds action values ``[B, A]`` for an environment of discrete actions."""
    head = nets.duelling_q_values if config.duelling else nets.q_values
    return nets.value_network(
        environment_spec, "Discrete CQL", lambda o, num_actions: head(o, num_actions, config.hidden_sizes, torso)
    )


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily: by a falling epsilon or on the ladder; in evaluation by a fixed epsilon."""
    if evaluation:
        return fixed_epsilon_policy(network.apply, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(network.apply)
    return epsilon_greedy_policy(network.apply, config.epsilon)


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds DQN's Huber loss plus the penalty (eq. 4), on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        q_tm1, q_target_t = network.apply(params, o_tm1), network.apply(state.target_params, o_t)  # [B, A]
        if config.double:
            q_t = network.apply(params, o_t)
            errors = losses.double_q_learning_error(q_tm1, a_tm1, r_t, discount_t, q_target_t, q_t)  # [B]
        else:
            errors = losses.q_learning_error(q_tm1, a_tm1, r_t, discount_t, q_target_t)
        per_item = losses.huber(errors, config.huber_delta)
        # Applied again, the network keeps the two terms' gradients apart until they are those of parameters.
        gaps = losses.cql_penalty(network.apply(params, o_tm1), a_tm1)  # [B], eq. 4, first term
        metrics = {"q": nets.mean_legal(q_tm1), "conservative_gap": jnp.mean(gaps)}
        per_item += config.cql_weight * gaps
        return importance_weighted_loss(per_item, metrics, batch, config, priorities=jnp.abs(errors))

    return loss


def make_update(network: nets.Network, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, network.init, optimizer, periodic(config.target_update_period))


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.Network] = make_networks,
    make_policy: MakePolicy[nets.Network, Config] = make_policy,
    make_loss: Callable[[nets.Network, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[nets.Network, Loss, Config], Update] = make_update,
) -> Agent[nets.Network]:
    """Returns discrete CQL as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
