"""Discrete CQL: conservative double Q-learning (Kumar et al. 2020, "Conservative Q-Learning", 2006.04779).

DQN with a penalty that presses the values of all actions down and those of the data's actions up: what the data do not
have is not overestimated.

Deviations from the paper:
  * On double DQN; the paper's experiments with Atari are on QR-DQN.
  * Adam and a Huber loss, as in this library's DQN, with defaults for small problems.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses
from agentkit import networks as nets
from agentkit.agents import dqn
from agentkit.agents.common.ranges import NotNegative
from agentkit.agents.off_policy import agent_of_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """Settings of discrete CQL, beside those of DQN.

    Attributes:
        conservative_weight: alpha, the penalty's weight beside the TD errors'; 0 is DQN.
        n_step: 1, for which the data's later actions do not matter.
    """

    conservative_weight: NotNegative = 1.0
    n_step: int = 1


def make_loss(networks: nets.Network, config: Config) -> Loss:
    """DQN's loss and the penalty on a batch of `Transition`s ``[B, ...]``."""
    td_loss = dqn.make_loss(networks, config)

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        td = td_loss(params, target_params, batch, key)
        q = networks.apply(params, batch.data.observation)  # [B, A]
        gap = jnp.mean(losses.log_sum_exp_gap(q, batch.data.action))  # eq. 4
        return LossOutput(
            td.loss + config.conservative_weight * gap, {**td.metrics, "conservative_gap": gap}, td.priorities
        )

    return loss


make_agent = agent_of_loss(Config, dqn.make_networks, dqn.make_policy, make_loss)
