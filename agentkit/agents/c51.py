"""C51: categorical DQN (Bellemare et al. 2017, "A Distributional Perspective on RL", 1707.06887).

The network says how likely each of a fixed set of returns is, and learns the whole distribution; actions are
chosen by its mean.

Deviations from the paper:
  * The loss is the paper's cross-entropy less the target's entropy: the same gradient, and 0 at best.
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: returns of rewards up to 1 and gamma 0.99 have a place on
    the atoms, where the paper's -10 to 10 are for clipped rewards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.off_policy import OffPolicyConfig, ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class AtomsConfig:
    """Settings of distributions on atoms.

    Attributes:
        num_atoms: returns that the distributions are made of, at least 2 (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
    """

    num_atoms: int = 101
    vmin: float = -100.0
    vmax: float = 100.0


@dataclasses.dataclass(frozen=True)
class Config(AtomsConfig, ValueConfig):
    """Settings of C51: those of `AtomsConfig` and of `ValueConfig`."""

    learning_rate: float = 5e-4


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.CategoricalNetwork:
    """A network of return distributions for an environment of discrete actions."""

    def logits(observation: Nest, num_actions: int) -> jax.Array:
        return nets.action_outputs(observation, num_actions, config.num_atoms, config.hidden_sizes)

    init, apply = nets.value_network(environment_spec, "C51", logits)
    return nets.CategoricalNetwork(init, apply, nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms))


def make_policy(networks: nets.CategoricalNetwork, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean return."""

    def mean_returns(params: Any, observation: Nest) -> jax.Array:
        return networks.q_values(networks.logits(params, observation), observation)

    return explore_values(mean_returns, config, evaluation)


def make_loss(networks: nets.CategoricalNetwork, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""

    def outputs(params: Any, target_params: Any, o_tm1: Nest, o_t: Nest, key: jax.Array) -> tuple[jax.Array, ...]:
        del key
        logits_t = networks.logits(target_params, o_t)
        return networks.logits(params, o_tm1), logits_t, networks.q_values(logits_t, o_t)

    return divergence_loss(outputs, networks, config)


def divergence_loss(
    outputs: Callable[..., tuple[jax.Array, ...]], networks: nets.CategoricalNetwork, config: OffPolicyConfig
) -> Loss:
    """The divergences of distributions from their targets.

    Args:
        outputs: ``(params, target_params, o_tm1, o_t, key) -> (logits_tm1 [B, A, N], logits_t [B, A, N], selector
            [B, A])``: what is learned, the lagged network's, and values that choose the action to bootstrap from.
        networks: have the atoms.
        config: says whether to prioritise.
    """

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        logits_tm1, logits_t, selector = outputs(params, target_params, o_tm1, o_t, key)
        per_item = losses.categorical_q_learning_loss(
            logits_tm1, action, reward, discount, logits_t, selector, networks.atoms
        )
        q_tm1 = nets.categorical_mean(logits_tm1, networks.atoms)
        return mean_loss(per_item, {"q": jnp.mean(q_tm1)}, batch, config)

    return loss


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
