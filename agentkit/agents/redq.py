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
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit.agents.checks import check_counts
from agentkit.agents.off_policy import agent_of_loss, mean_loss
from agentkit.agents.soft import ContinuousConfig, Networks, fit_soft, make_policy, squashed_entropy
from agentkit.agents.soft import make_networks as make_soft_networks
from agentkit.errors import ConfigError
from agentkit.learning import ActorCritic, Bootstrap, SoftLosses, Update, soft_target
from agentkit.specs import EnvironmentSpec
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ContinuousConfig):
    """Settings of REDQ, beside those of `ContinuousConfig`.

    Attributes:
        num_critics: N, critics of the ensemble.
        subset_size: M, critics whose smallest value is a target, at most N.
        policy_period: critic updates for each update of policy and temperature; the paper's is `updates_per_step`.
    """

    num_critics: int = 10
    subset_size: int = 2
    updates_per_step: float = 20.0
    updates_per_call: int = 20
    policy_period: int = 20

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_counts(self, "num_critics", "subset_size")
        if self.subset_size > self.num_critics:
            raise ConfigError(
                f"subset_size must be at most num_critics, {self.num_critics}, found {self.subset_size}: a target's "
                "critics are drawn without replacement."
            )


def make_networks(environment_spec: EnvironmentSpec, config: Config) -> Networks:
    """A policy, and one critic, which the ensemble has N sets of parameters for."""
    return make_soft_networks(environment_spec, config, "REDQ")


def make_losses(networks: Networks, config: Config) -> SoftLosses:
    """The losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``; leaves of `critics` are ``[N, ...]``."""
    ensemble = jax.vmap(networks.critic.apply, in_axes=(0, None, None))  # [N, B]

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        sample_key, subset_key = jax.random.split(key)
        a_t, log_prob = nets.sample_and_log_prob(networks.policy.apply(bootstrap.policy, o_t), sample_key)
        drawn = jax.random.permutation(subset_key, config.num_critics)[: config.subset_size]
        subset = jax.tree.map(lambda leaf: leaf[drawn], bootstrap.critics)
        q_t = jnp.min(ensemble(subset, o_t, a_t), axis=0)  # [B]
        target = soft_target(reward, discount, q_t, log_prob, bootstrap.temperature)  # [B], eq. 1
        q_tm1 = ensemble(critics, o_tm1, action)  # [N, B]
        errors = q_tm1 - target[None]
        metrics = {"q": jnp.mean(q_tm1), "critics_std": jnp.mean(jnp.std(q_tm1, axis=0))}
        priorities = jnp.mean(jnp.abs(errors), axis=0)
        return mean_loss(0.5 * jnp.sum(jnp.square(errors), axis=0), metrics, batch, config, priorities)

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, batch: ReplaySample, key: jax.Array) -> Any:
        observation: Nest = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(networks.policy.apply(policy, observation), key)
        q = jnp.mean(ensemble(critics, observation, action), axis=0)
        return jnp.mean(temperature * log_prob - q), jnp.mean(log_prob)

    return SoftLosses(critic_loss, policy_loss)


def fit(make_losses: Any, networks: Networks, config: Config) -> Update:
    """A step on all critics, and on policy and temperature at each `policy_period`-th (paper, algorithm 1)."""
    init = ActorCritic(networks.policy.init, jax.vmap(networks.critic.init))
    target_entropy = squashed_entropy(networks, config)
    losses = make_losses(networks, config)
    return fit_soft(losses, init, config.num_critics, config, target_entropy, config.policy_period)


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
