"""Discrete BCQ: batch-constrained Q-learning (Fujimoto et al. 2019, "Benchmarking Batch Deep RL", 1910.01708).

Double Q-learning that seeks the best action among those alone that the data make likely enough, by a model of the
behaviour that is learned beside the values: for acting, and for the target.

Differences from the paper:
  * Values and behaviour have a network each; the paper's share the convolutions of one, and regularise the logits.
  * Adam with another epsilon, and optional clipping of the global gradient norm.
  * Epsilon falls linearly over each actor's steps, of all its environments, where the agent explores.
  * Truncated episodes bootstrap.
  * Defaults fit small problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of discrete BCQ, in addition to those of `ReplayConfig`.

    Attributes:
        n_step: 1, for which the data's later actions do not matter.
        hidden_sizes: units of each hidden layer of both networks (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        threshold: tau: the least ratio of an action's probability to the likeliest one's at which it is considered; 0
            is double DQN, 1 behavioural cloning.
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
    threshold: Fraction = 0.3


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
        behaviour: ``(params, observation [B, ...]) -> logits [B, A]`` of the data's actions.
    """

    init: Callable[[jax.Array], Params]
    q_values: Callable[[Params, Nest], jax.Array]
    behaviour: Callable[[Params, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds values, and a model of the behaviour, for an environment of discrete actions."""
    network = nets.value_network(
        environment_spec,
        "Discrete BCQ",
        lambda o, num_actions: nets.q_values(o, num_actions, config.hidden_sizes, torso),
    )

    def init(key: jax.Array) -> dict[str, Params]:
        values_key, behaviour_key = jax.random.split(key)
        return {"values": network.init(values_key), "behaviour": network.init(behaviour_key)}

    return Networks(
        init,
        lambda params, observation: network.apply(params["values"], observation),
        lambda params, observation: network.apply(params["behaviour"], observation),
    )


def constrained_values(networks: Networks, config: Config, params: Params, observation: Nest) -> jax.Array:
    """Returns the values ``[B, A]``, -inf for actions that are not likely enough (eq. 10)."""
    likely = losses.bcq_action_mask(networks.behaviour(params, observation), config.threshold)
    return jnp.where(likely, networks.q_values(params, observation), -jnp.inf)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily among likely actions; epsilon falls or is on the ladder, in evaluation it is fixed."""

    def q_values(params: Params, observation: Nest) -> jax.Array:
        return constrained_values(networks, config, params, observation)

    if evaluation:
        return fixed_epsilon_policy(q_values, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(q_values)
    return epsilon_greedy_policy(q_values, config.epsilon)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Builds the TD loss plus the behaviour's, on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        q_tm1, q_target_t = networks.q_values(params, o_tm1), networks.q_values(state.target_params, o_t)  # [B, A]
        q_t = constrained_values(networks, config, params, o_t)
        errors = losses.double_q_learning_error(q_tm1, a_tm1, r_t, discount_t, q_target_t, q_t)  # [B], eq. 11
        cloning = losses.action_cross_entropy(networks.behaviour(params, o_tm1), a_tm1)  # [B]
        metrics = {"q": nets.mean_legal(q_tm1), "cloning_loss": jnp.mean(cloning)}
        per_item = losses.huber(errors, 1.0) + cloning
        return importance_weighted_loss(per_item, metrics, batch, config, priorities=jnp.abs(errors))

    return loss


def make_update(networks: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target networks every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, networks.init, optimizer, periodic(config.target_update_period))


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
    make_policy: MakePolicy[Networks, Config] = make_policy,
    make_loss: Callable[[Networks, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[Networks, Loss, Config], Update] = make_update,
) -> Agent[Networks]:
    """Returns discrete BCQ as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
