"""QR-DQN: quantile regression DQN (Dabney et al. 2018, "Distributional RL with Quantile Regression", 1710.10044).

The network gives N quantiles of each action's return, at fixed fractions, so that returns need no bounds; actions
are chosen by their mean.

Deviations from the paper:
  * The quantile Huber loss is divided by `huber_delta`, as in Dabney et al. 2018 (1806.06923), so that it tends to
    quantile regression as `huber_delta` tends to 0; at the paper's 1 there is no difference.
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: 51 quantiles instead of 200.
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
from agentkit.agents.checks import check_counts, check_not_negative
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of QR-DQN, beside those of `ValueConfig`.

    Attributes:
        num_quantiles: N, quantiles of each action's return.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper (the
            paper's QR-DQN-0).
    """

    num_quantiles: int = 51
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_counts(self, "num_quantiles")
        check_not_negative(self, "huber_delta")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        quantiles: ``(params, observation [B, ...]) -> [B, N, A]``; quantile i of N at the fraction (2 i + 1) / 2 N.
    """

    init: Callable[[jax.Array], Any]
    quantiles: Callable[[Any, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A network of quantiles for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "QR-DQN")

    def quantiles(observation: Nest) -> jax.Array:
        outputs = nets.action_outputs(observation, num_actions, config.num_quantiles, config.hidden_sizes)
        return nets.mask_illegal(jnp.swapaxes(outputs, 1, 2), observation)

    return Networks(*nets.network(quantiles, environment_spec.observations))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of the quantiles."""

    def q_values(params: Any, observation: Nest) -> jax.Array:
        return jnp.mean(networks.quantiles(params, observation), axis=1)

    return explore_values(q_values, config, evaluation)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""
    midpoints = (jnp.arange(config.num_quantiles) + 0.5) / config.num_quantiles  # lemma 2, [N]

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        quantiles_tm1 = networks.quantiles(params, o_tm1)  # [B, N, A]
        quantiles_t = networks.quantiles(target_params, o_t)
        taus = jnp.broadcast_to(midpoints, quantiles_tm1.shape[:2])
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1, taus, action, reward, discount, quantiles_t, quantiles_t, config.huber_delta
        )
        return mean_loss(per_item, {"q": nets.mean_legal(quantiles_tm1)}, batch, config)

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
