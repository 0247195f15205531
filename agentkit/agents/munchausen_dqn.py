"""Munchausen-DQN: DQN that is rewarded for its own confidence (Vieillard et al. 2020, "Munchausen RL", 2007.14430).

The target bootstraps softly from the policy softmax(q / temperature), with its entropy, and adds the scaled
log-probability of the action taken to the reward. So each policy stays close to the one before.

Differences from the paper:
  * Returns of 10 steps by default, of which only the first action has its bonus; `n_step` 1 is the paper's. With one
    step, values on CartPole grew by one reward for each copy to the target, or without end.
  * Adam with another epsilon, and optional clipping of the global gradient norm; the loss may be squared instead of
    Huber's.
  * Epsilon falls linearly over each actor's steps, of all its environments.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
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
from agentkit.agents.common.ranges import Count, Fraction, NotPositive, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of Munchausen-DQN, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        temperature: tau: how soft the policy is that the target bootstraps from.
        munchausen_coefficient: alpha, how much of the log-probability is added to the reward; 0 for soft DQN.
        log_policy_clip: l_0, the least that temperature * log-probability counts as, at most 0.
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
    """

    n_step: Count = 10
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False
    temperature: Positive = 0.03
    munchausen_coefficient: Fraction = 0.9
    log_policy_clip: NotPositive = -1.0
    huber_delta: Positive | None = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds action values ``[B, A]`` for an environment of discrete actions."""
    return nets.value_network(
        environment_spec,
        "Munchausen-DQN",
        lambda o, num_actions: nets.q_values(o, num_actions, config.hidden_sizes, torso),
    )


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily: by a falling epsilon or on the ladder; in evaluation by a fixed epsilon."""
    if evaluation:
        return fixed_epsilon_policy(network.apply, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(network.apply)
    return epsilon_greedy_policy(network.apply, config.epsilon)


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds the Huber loss of the Munchausen TD errors, on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        q_tm1 = network.apply(params, o_tm1)  # [B, A]
        q_target_tm1, q_target_t = network.apply(state.target_params, o_tm1), network.apply(state.target_params, o_t)
        errors = losses.munchausen_error(
            q_tm1,
            a_tm1,
            r_t,
            discount_t,
            q_target_tm1,
            q_target_t,
            temperature=config.temperature,
            munchausen_coefficient=config.munchausen_coefficient,
            log_policy_clip=config.log_policy_clip,
        )  # [B], eq. 2
        per_item, metrics = losses.huber(errors, config.huber_delta), {"q": nets.mean_legal(q_tm1)}
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
    """Returns Munchausen-DQN as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
