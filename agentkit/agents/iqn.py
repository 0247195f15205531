"""IQN: implicit quantile networks (Dabney et al. 2018, "Implicit Quantile Networks for Distributional RL", 1806.06923).

The network takes a fraction tau beside the observation and gives that quantile of each action's return, so it knows
the whole distribution. Actions are chosen by the mean of samples of it, or by the mean of its worst part.

Deviations from the paper:
  * Of its risk-sensitive policies the conditional value at risk (`risk_level` < 1), and the neutral one (1).
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.agents import qr_dqn
from agentkit.agents.common.ranges import Count, Range
from agentkit.agents.off_policy import agent_of_loss, explore_values
from agentkit.errors import ConfigError
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(qr_dqn.Config):
    """Settings of IQN, beside those of QR-DQN.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images), at least one.
        num_cosines: features of a fraction tau, before the layer that embeds it (paper, eq. 4).
        num_quantiles: N, fractions drawn for each transition and learned at.
        num_target_quantiles: N', fractions drawn for each target.
        num_policy_quantiles: K, fractions drawn to choose an action by.
        risk_level: the share of the worst returns whose mean chooses actions, in (0, 1]; 1 for all of them.
    """

    num_cosines: Count = 64
    num_quantiles: Count = 8
    num_target_quantiles: Count = 8
    num_policy_quantiles: Count = 32
    risk_level: Annotated[float, Range("in (0, 1]", lambda value: 0 < value <= 1)] = 1.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range, and networks without a layer that the fractions could enter at."""
        super().__post_init__()
        if not self.hidden_sizes:
            raise ConfigError(f"hidden_sizes needs at least one layer, found {self.hidden_sizes}.")


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.Network:
    """``(params, observation [B, ...], taus [B, N]) -> [B, N, A]``: of each action's return the quantiles at `taus`."""

    def quantiles(observation: Nest, num_actions: int, taus: jax.Array) -> jax.Array:
        return nets.implicit_quantiles(observation, taus, num_actions, config.hidden_sizes, config.num_cosines)

    taus_spec = specs.Array((config.num_quantiles,), np.float32)
    return nets.value_network(environment_spec, "IQN", quantiles, taus_spec)


def make_policy(networks: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of K sampled quantiles (paper, eq. 2)."""

    def q_values(params: Any, observation: Nest, key: jax.Array) -> jax.Array:
        (batch_size, *_) = jax.tree.leaves(observation)[0].shape
        return jnp.mean(networks.apply(params, observation, risky_taus(key, batch_size, config)), axis=1)

    return explore_values(q_values, config, evaluation, draws=True)


def risky_taus(key: jax.Array, batch_size: int, config: Config) -> jax.Array:
    """Fractions to choose actions by, ``[B, K]``: uniform, but of the worst share only (paper, eq. 2, CVaR)."""
    return config.risk_level * jax.random.uniform(key, (batch_size, config.num_policy_quantiles))


def make_loss(networks: nets.Network, config: Config) -> Loss:
    """The loss of the paper's eq. 3 and algorithm 1 on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, reward, o_t = batch.data.observation, batch.data.reward, batch.data.next_observation
        key_tm1, key_t, selector_key = jax.random.split(key, 3)
        taus_tm1 = jax.random.uniform(key_tm1, (*reward.shape, config.num_quantiles))
        taus_t = jax.random.uniform(key_t, (*reward.shape, config.num_target_quantiles))
        taus_selector = risky_taus(selector_key, reward.shape[0], config)
        quantiles_tm1 = networks.apply(params, o_tm1, taus_tm1)  # [B, N, A]
        quantiles_t = networks.apply(target_params, o_t, taus_t)  # [B, N', A]
        selector = networks.apply(target_params, o_t, taus_selector)  # [B, K, A]
        return qr_dqn.quantile_loss(quantiles_tm1, taus_tm1, quantiles_t, selector, batch, config)

    return loss


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
