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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.checks import check_counts, check_not_negative
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.errors import ConfigError
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of IQN, beside those of `ValueConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images), at least one.
        num_cosines: features of a fraction tau, before the layer that embeds it (paper, eq. 4).
        num_quantiles: N, fractions drawn for each transition and learned at.
        num_target_quantiles: N', fractions drawn for each target.
        num_policy_quantiles: K, fractions drawn to choose an action by.
        risk_level: the share of the worst returns whose mean chooses actions, in (0, 1]; 1 for all of them.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper.
    """

    num_cosines: int = 64
    num_quantiles: int = 8
    num_target_quantiles: int = 8
    num_policy_quantiles: int = 32
    risk_level: float = 1.0
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_counts(self, "num_cosines", "num_quantiles", "num_target_quantiles", "num_policy_quantiles")
        check_not_negative(self, "huber_delta")
        if not 0 < self.risk_level <= 1:
            raise ConfigError(f"risk_level must be in (0, 1], found {self.risk_level}.")
        if not self.hidden_sizes:
            raise ConfigError(f"hidden_sizes needs at least one layer, found {self.hidden_sizes}.")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        quantiles: ``(params, observation [B, ...], taus [B, N]) -> [B, N, A]``, the quantiles at the fractions `taus`.
    """

    init: Callable[[jax.Array], Any]
    quantiles: Callable[[Any, Nest, jax.Array], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A network of quantiles for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "IQN")

    def quantiles(observation: Nest, taus: jax.Array) -> jax.Array:
        return nets.implicit_quantiles(observation, taus, num_actions, config.hidden_sizes, config.num_cosines)

    taus_spec = specs.Array((config.num_quantiles,), np.float32)
    return Networks(*nets.network(quantiles, environment_spec.observations, taus_spec))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of K sampled quantiles (paper, eq. 2)."""

    def q_values(params: Any, observation: Nest, key: jax.Array) -> jax.Array:
        (batch_size, *_) = jax.tree.leaves(observation)[0].shape
        return jnp.mean(networks.quantiles(params, observation, risky_taus(key, batch_size, config)), axis=1)

    return explore_values(q_values, config, evaluation, draws=True)


def risky_taus(key: jax.Array, batch_size: int, config: Config) -> jax.Array:
    """Fractions to choose actions by, ``[B, K]``: uniform, but of the worst share only (paper, eq. 2, CVaR)."""
    return config.risk_level * jax.random.uniform(key, (batch_size, config.num_policy_quantiles))


def make_loss(networks: Networks, config: Config) -> Loss:
    """The loss of the paper's eq. 3 and algorithm 1 on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        key_tm1, key_t, selector_key = jax.random.split(key, 3)
        taus_tm1 = jax.random.uniform(key_tm1, (*reward.shape, config.num_quantiles))
        taus_t = jax.random.uniform(key_t, (*reward.shape, config.num_target_quantiles))
        taus_selector = risky_taus(selector_key, reward.shape[0], config)
        quantiles_tm1 = networks.quantiles(params, o_tm1, taus_tm1)  # [B, N, A]
        quantiles_t = networks.quantiles(target_params, o_t, taus_t)  # [B, N', A]
        selector = networks.quantiles(target_params, o_t, taus_selector)  # [B, K, A]
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1, taus_tm1, action, reward, discount, quantiles_t, selector, config.huber_delta
        )
        return mean_loss(per_item, {"q": nets.mean_legal(quantiles_tm1)}, batch, config)

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
