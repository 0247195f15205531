"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", 1812.05905).

Twin critics, a tanh-Gaussian policy and a temperature learned towards a target entropy.

Deviations from the paper:
  * The temperature's logarithm is the learned parameter (as in the authors' code).
  * An actor begins with `num_random_steps` uniform actions, so that the first batches are varied.
  * The policy climbs the critics as they were before the update's own step on them.
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit.agents.off_policy import agent_of_loss, mean_loss
from agentkit.agents.soft import (
    ContinuousConfig,
    Networks,
    fit_soft,
    make_networks,
    make_policy,
    squashed_entropy,
)
from agentkit.learning import ActorCritic, Bootstrap, SoftLosses, Update, soft_target
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ContinuousConfig):
    """Settings of SAC: those of `ContinuousConfig`."""


def make_losses(networks: Networks, config: Config) -> SoftLosses:
    """The losses of critics and policy on a batch of `Transition`s ``[B, ...]``; `critics` are a pair of parameters."""

    def both(critics: Any, observation: Nest, action: jax.Array) -> list[jax.Array]:
        return [networks.critic.apply(params, observation, action) for params in critics]

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        a_t, log_prob = nets.sample_and_log_prob(networks.policy.apply(bootstrap.policy, o_t), key)
        q_t = jnp.minimum(*both(bootstrap.critics, o_t, a_t))
        target = soft_target(reward, discount, q_t, log_prob, bootstrap.temperature)  # [B]
        q_1, q_2 = both(critics, o_tm1, action)
        per_item = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # eq. 5
        return mean_loss(per_item, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, batch: ReplaySample, key: jax.Array) -> Any:
        observation = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(networks.policy.apply(policy, observation), key)
        q = jnp.minimum(*both(critics, observation, action))
        return jnp.mean(temperature * log_prob - q), jnp.mean(log_prob)  # eq. 9

    return SoftLosses(critic_loss, policy_loss)


def fit(make_losses: Any, networks: Networks, config: Config) -> Update:
    """One step each on critics, policy and temperature (paper, algorithm 1)."""
    init = ActorCritic(networks.policy.init, lambda keys: tuple(map(networks.critic.init, keys)))
    return fit_soft(make_losses(networks, config), init, 2, config, squashed_entropy(networks, config))


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
