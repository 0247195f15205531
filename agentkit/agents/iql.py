"""IQL: implicit Q-learning (Kostrikov et al. 2021, "Offline RL with Implicit Q-Learning", 2110.06169).

The value of a state is an upper expectile of the values of the actions that the data have there, so that no action
is ever judged that they do not have; the policy imitates their actions, the better ones more.

Deviations from the paper:
  * The policy climbs the critics and the value as this update has just made them; the authors' code has the target
    critics, and the value before its step.
  * One step size throughout; the paper lets the policy's fall by a cosine. No dropout.
  * Rewards are not scaled by the data's range of returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit.agents import regression
from agentkit.agents.off_policy import agent_of_loss, mean_loss
from agentkit.agents.regression import Networks, RegressionConfig, fit_regression, make_policy
from agentkit.errors import ConfigError
from agentkit.learning import ActorCritic, ActorCriticLosses, Update
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(RegressionConfig):
    """Settings of IQL, beside those of `RegressionConfig`.

    Attributes:
        expectile: tau, in (0, 1): at 0.5 values are those of whoever made the data, near 1 of the best in them.
        temperature: 1 / beta of the paper; the less, the greedier.
    """

    expectile: float = 0.7
    temperature: float = 1.0 / 3.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile must be in (0, 1), found {self.expectile}.")


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy, twin critics and a value."""
    return regression.make_networks(environment_spec, config, "IQL")


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The losses on a batch of `Transition`s ``[B, ...]``; what judges is ``{"critics": ..., "value": ...}``."""

    def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.minimum(*networks.critics.apply(critics, observation, action))

    def critic_loss(judges: Any, targets: ActorCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        v_tm1 = networks.value.apply(judges["value"], o_tm1)  # [B]
        v_t = networks.value.apply(jax.lax.stop_gradient(judges["value"]), o_t)
        q_target = least(targets.critic["critics"], o_tm1, action)
        value_loss = losses.expectile_loss(jax.lax.stop_gradient(q_target) - v_tm1, config.expectile)  # eq. 5
        twins = networks.critics.apply(judges["critics"], o_tm1, action)
        errors = [losses.action_value_error(q, reward, discount, v_t) for q in twins]  # eq. 6
        per_item = jnp.square(errors[0]) + jnp.square(errors[1]) + value_loss
        metrics = {"q": jnp.mean(twins[0]), "value": jnp.mean(v_tm1)}
        return mean_loss(per_item, metrics, batch, config, priorities=jnp.abs(errors[0]))

    def policy_loss(policy: Any, judges: Any, batch: ReplaySample) -> jax.Array:
        observation, action = batch.data.observation, batch.data.action
        advantage = least(judges["critics"], observation, action) - networks.value.apply(judges["value"], observation)
        weights = losses.exponential_weights(advantage, config.temperature, config.max_weight)
        return -jnp.mean(weights * networks.policy.apply(policy, observation).log_prob(action))  # eq. 7

    return ActorCriticLosses(critic_loss, policy_loss)


def fit(make_losses: Callable[[Networks, Config], ActorCriticLosses], networks: Networks, config: Config) -> Update:
    """A step on value, critics and policy (paper, algorithm 1; the policy, which changes no value, beside them)."""

    def init_judges(key: jax.Array) -> dict[str, Any]:
        critics_key, value_key = jax.random.split(key)
        return {"critics": networks.critics.init(critics_key), "value": networks.value.init(value_key)}

    return fit_regression(make_losses(networks, config), init_judges, networks, config)


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
