"""REDQ: randomized ensembled double Q-learning (Chen et al. 2021, "Randomized Ensembled Double ...", 2101.05982).

SAC that takes many steps on its critics for each of the environment's, and is kept from overestimating by an ensemble:
each target is the smallest of a few critics that are drawn anew, and the policy climbs the mean of all.

Deviations from the paper:
  * The target entropy is minus the number of action dimensions; the paper's differ by environment (-1 for Hopper).
  * A policy step climbs the critics as they were before the last of the G steps on them.
  * The temperature's logarithm is the learned parameter (as in the authors' code).
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from agentkit.agents import sac
from agentkit.agents.common.ranges import Count
from agentkit.agents.off_policy import agent_of_loss
from agentkit.errors import ConfigError
from agentkit.learning import Bootstrap, SoftLosses, Update
from agentkit.specs import EnvironmentSpec
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(sac.EnsembleConfig):
    """Settings of REDQ, beside those of `sac.EnsembleConfig`.

    Attributes:
        num_critics: N, critics of the ensemble.
        subset_size: M, critics whose smallest value is a target, at most N.
    """

    num_critics: Count = 10
    subset_size: Count = 2

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        if self.subset_size > self.num_critics:
            raise ConfigError(
                f"subset_size must be at most num_critics, {self.num_critics}, found {self.subset_size}: a target's "
                "critics are drawn without replacement."
            )


def make_networks(environment_spec: EnvironmentSpec, config: Config) -> sac.Networks:
    """A policy, and one critic, which the ensemble has N sets of parameters for."""
    return sac.make_networks(environment_spec, config, "REDQ")


def make_losses(networks: sac.Networks, config: Config) -> SoftLosses:
    """The losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``; leaves of `critics` are ``[N, ...]``."""
    ensemble = jax.vmap(networks.critic.apply, in_axes=(0, None, None))  # [N, B]

    def mean(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.mean(ensemble(critics, observation, action), axis=0)

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        sample_key, subset_key = jax.random.split(key)
        drawn = jax.random.permutation(subset_key, config.num_critics)[: config.subset_size]

        def least_drawn(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
            subset = jax.tree.map(lambda leaf: leaf[drawn], critics)
            return jnp.min(ensemble(subset, observation, action), axis=0)

        target = sac.targets(networks, least_drawn, bootstrap, batch, sample_key)  # [B], eq. 1
        q_tm1 = ensemble(critics, batch.data.observation, batch.data.action)  # [N, B]
        metrics = {"q": jnp.mean(q_tm1), "critics_std": jnp.mean(jnp.std(q_tm1, axis=0))}
        return sac.ensemble_loss(q_tm1, target, metrics, batch, config)

    return SoftLosses(critic_loss, functools.partial(sac.policy_loss, networks, mean))


def fit(losses: SoftLosses, networks: sac.Networks, config: Config) -> Update:
    """A step on all critics, and on policy and temperature at each `policy_period`-th (paper, algorithm 1)."""
    return sac.fit_ensemble(losses, networks, config, config.num_critics)


make_agent = agent_of_loss(Config, make_networks, sac.make_policy, make_losses, fit)
