"""Discrete BCQ: batch-constrained Q-learning (Fujimoto et al. 2019, "Benchmarking Batch Deep RL", 1910.01708).

Double Q-learning whose best action is sought among those alone that the data make likely enough, by a model of the
behaviour that is learned beside the values: for acting, and for what is bootstrapped.

Deviations from the paper:
  * Values and behaviour have a network each; the paper's share the convolutions of one, and regularise the logits.
  * Adam and defaults for small problems.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.common.ranges import Fraction
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of discrete BCQ, beside those of `ValueConfig`.

    Attributes:
        threshold: tau: an action is looked at whose probability is at least so much of the likeliest one's; 0 is
            double DQN, 1 behavioural cloning.
        n_step: 1, for which the data's later actions do not matter.
    """

    threshold: Fraction = 0.3
    n_step: int = 1


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
        behaviour: ``(params, observation [B, ...]) -> logits [B, A]`` of the data's actions.
    """

    init: Callable[[jax.Array], Any]
    q_values: Callable[[Any, Nest], jax.Array]
    behaviour: Callable[[Any, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Values, and a model of the behaviour, for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Discrete BCQ")
    network = nets.network(
        lambda observation: nets.q_values(observation, num_actions, config.hidden_sizes), environment_spec.observations
    )

    def init(key: jax.Array) -> dict[str, Any]:
        values_key, behaviour_key = jax.random.split(key)
        return {"values": network.init(values_key), "behaviour": network.init(behaviour_key)}

    return Networks(
        init,
        lambda params, observation: network.apply(params["values"], observation),
        lambda params, observation: network.apply(params["behaviour"], observation),
    )


def constrained_values(networks: Networks, config: Config) -> Callable[[Any, Nest], jax.Array]:
    """``(params, observation [B, ...]) -> [B, A]``: the values, -inf for actions that are not likely enough."""

    def values(params: Any, observation: Nest) -> jax.Array:
        likely = losses.likely_actions(networks.behaviour(params, observation), config.threshold)
        return jnp.where(likely, networks.q_values(params, observation), -jnp.inf)

    return values


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy, among the actions that are likely enough (paper, eq. 10)."""
    return explore_values(constrained_values(networks, config), config, evaluation)


def make_loss(networks: Networks, config: Config) -> Loss:
    """The TD loss and the behaviour's on a batch of `Transition`s ``[B, ...]``."""
    constrained = constrained_values(networks, config)

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        q_tm1 = networks.q_values(params, o_tm1)  # [B, A]
        q_target_t = networks.q_values(target_params, o_t)
        errors = losses.double_q_learning_error(q_tm1, action, reward, discount, q_target_t, constrained(params, o_t))
        cloning = losses.action_cross_entropy(networks.behaviour(params, o_tm1), action)  # [B]
        metrics = {"q": nets.mean_legal(q_tm1), "cloning_loss": jnp.mean(cloning)}
        return mean_loss(losses.huber(errors, 1.0) + cloning, metrics, batch, config, priorities=jnp.abs(errors))

    return loss


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
