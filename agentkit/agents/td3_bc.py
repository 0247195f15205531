"""TD3+BC: TD3 with a cloning term (Fujimoto & Gu 2021, "A Minimalist Approach to Offline RL", 2106.06860).

TD3, whose policy is also drawn to the actions of the data, so that it does not climb the critic where no data are. The
critic's part is scaled by the mean absolute value, so that one weight serves rewards of any size.

Deviations from the paper:
  * Observations are not standardised with the data's mean and deviation.
  * The distance from the data's action is a sum over the action's dimensions, as the paper writes it; the authors'
    code takes their mean.
  * Weights begin orthogonal, those of the policy's last layer small.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit.agents import td3
from agentkit.agents.common.ranges import NotNegative
from agentkit.agents.off_policy import agent_of_loss, explore_actions
from agentkit.learning import ActorCriticLosses
from agentkit.networks import ActorCriticNetworks
from agentkit.types import ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(td3.Config):
    """Settings of TD3+BC, beside those of TD3.

    Attributes:
        value_weight: alpha, what the critic counts beside the distance from the data's actions; 0 only clones.
    """

    value_weight: NotNegative = 2.5


def regularized_policy_loss(q: jax.Array, squared_distance: jax.Array, weight: float) -> jax.Array:
    """-lambda q + (pi(s) - a)^2, ``[B]``, lambda = weight / mean |q| (paper, eq. 3 and 5).

    Args:
        q: of the policy's actions, ``[B]``.
        squared_distance: of these from the data's actions, ``[B]``.
        weight: alpha; at 0 this is behavioural cloning. No gradient passes through lambda.
    """
    scale = weight / jnp.maximum(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), 1e-8)
    return squared_distance - scale * q


def make_losses(networks: ActorCriticNetworks, config: Config) -> ActorCriticLosses:
    """TD3's loss of the critics, and the policy's with the cloning term, on `Transition`s ``[B, ...]``."""

    def policy_loss(policy: Any, critics: Any, batch: ReplaySample) -> jax.Array:
        observation = batch.data.observation
        action = networks.policy.apply(policy, observation)
        q = networks.critic.apply(critics, observation, action)[0]
        squared_distance = jnp.sum(jnp.square(action - batch.data.action), axis=-1)  # [B]
        return jnp.mean(regularized_policy_loss(q, squared_distance, config.value_weight))

    return ActorCriticLosses(td3.make_losses(networks, config).critic, policy_loss)


make_agent = agent_of_loss(Config, td3.make_networks, explore_actions, make_losses, td3.fit)
