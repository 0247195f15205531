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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of C51, beside those of `ValueConfig`.

    Attributes:
        num_atoms: returns that the distributions are made of, at least 2 (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
    """

    num_atoms: int = 101
    vmin: float = -100.0
    vmax: float = 100.0
    learning_rate: float = 5e-4


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        logits: ``(params, observation [B, ...]) -> [B, A, N]``, of the probability of each atom.
        atoms: the returns, rising, float32 ``[N]``.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, Nest], jax.Array]
    atoms: jax.Array


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A network of return distributions for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "C51")

    def logits(observation: Nest) -> jax.Array:
        return nets.action_outputs(observation, num_actions, config.num_atoms, config.hidden_sizes)

    network = nets.network(logits, environment_spec.observations)
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return Networks(network.init, network.apply, atoms)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean return."""

    def q_values(params: Any, observation: Nest) -> jax.Array:
        q = nets.categorical_mean(networks.logits(params, observation), networks.atoms)
        return nets.mask_illegal(q, observation)

    return explore_values(q_values, config, evaluation)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        logits_tm1 = networks.logits(params, o_tm1)  # [B, A, N]
        logits_t = networks.logits(target_params, o_t)
        q_t = nets.mask_illegal(nets.categorical_mean(logits_t, networks.atoms), o_t)
        per_item = losses.categorical_q_learning_loss(
            logits_tm1, action, reward, discount, logits_t, q_t, networks.atoms
        )
        q_tm1 = nets.categorical_mean(logits_tm1, networks.atoms)
        return mean_loss(per_item, {"q": jnp.mean(q_tm1)}, batch, config)

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
