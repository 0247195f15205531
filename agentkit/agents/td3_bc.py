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

from agentkit import losses
from agentkit.agents import td3
from agentkit.agents.checks import check_not_negative
from agentkit.agents.off_policy import agent_of_loss
from agentkit.learning import ActorCriticLosses
from agentkit.types import ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(td3.Config):
    """Settings of TD3+BC, beside those of TD3.

    Attributes:
        value_weight: alpha, what the critic counts beside the distance from the data's actions; 0 only clones.
    """

    value_weight: float = 2.5

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_not_negative(self, "value_weight")


def make_losses(networks: td3.Networks, config: Config) -> ActorCriticLosses:
    """TD3's loss of the critics, and the policy's with the cloning term, on `Transition`s ``[B, ...]``."""

    def policy_loss(policy: Any, critics: Any, batch: ReplaySample) -> jax.Array:
        observation = batch.data.observation
        action = networks.policy.apply(policy, observation)
        q = networks.critics.apply(critics, observation, action)[0]
        squared_distance = jnp.sum(jnp.square(action - batch.data.action), axis=-1)  # [B]
        return jnp.mean(losses.regularized_policy_loss(q, squared_distance, config.value_weight))

    return ActorCriticLosses(td3.make_losses(networks, config).critic, policy_loss)


Agent = agent_of_loss(Config, td3.make_networks, td3.make_policy, make_losses, td3.fit)
