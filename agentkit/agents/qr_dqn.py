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
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.common.ranges import Count, NotNegative
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

    num_quantiles: Count = 51
    huber_delta: NotNegative = 1.0


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.Network:
    """The quantiles ``[B, N, A]`` of each action's return; quantile i of N is at the fraction (2 i + 1) / 2 N."""

    def quantiles(observation: Nest, num_actions: int) -> jax.Array:
        outputs = nets.action_outputs(observation, num_actions, config.num_quantiles, config.hidden_sizes)
        return nets.mask_illegal(jnp.swapaxes(outputs, 1, 2), observation)

    return nets.value_network(environment_spec, "QR-DQN", quantiles)


def make_policy(networks: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of the quantiles."""

    def q_values(params: Any, observation: Nest) -> jax.Array:
        return jnp.mean(networks.apply(params, observation), axis=1)

    return explore_values(q_values, config, evaluation)


def make_loss(networks: nets.Network, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""
    midpoints = (jnp.arange(config.num_quantiles) + 0.5) / config.num_quantiles  # lemma 2, [N]

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        quantiles_tm1 = networks.apply(params, batch.data.observation)  # [B, N, A]
        quantiles_t = networks.apply(target_params, batch.data.next_observation)
        taus = jnp.broadcast_to(midpoints, quantiles_tm1.shape[:2])
        return quantile_loss(quantiles_tm1, taus, quantiles_t, quantiles_t, batch, config)

    return loss


def quantile_loss(
    quantiles_tm1: jax.Array,
    taus_tm1: jax.Array,
    quantiles_t: jax.Array,
    selector: jax.Array,
    batch: ReplaySample,
    config: Config,
) -> LossOutput:
    """The quantile regression of a batch; see `losses.quantile_q_learning_loss` for the arguments."""
    _, action, reward, discount, _, _ = batch.data
    per_item = losses.quantile_q_learning_loss(
        quantiles_tm1, taus_tm1, action, reward, discount, quantiles_t, selector, config.huber_delta
    )
    return mean_loss(per_item, {"q": nets.mean_legal(quantiles_tm1)}, batch, config)


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
