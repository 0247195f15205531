"""DroQ: dropout Q-functions (Hiraoka et al. 2021, "Dropout Q-Functions for Doubly Efficient RL", 2110.02034).

SAC that takes many steps on its critics for each of the environment's, as REDQ does, with two critics in place of an
ensemble: dropout makes each of their values a draw, and layer normalisation keeps them from diverging.

Deviations from the paper:
  * One dropout rate as the default; the paper has one for each environment.
  * The target entropy is minus the number of action dimensions; the paper's differ by environment.
  * A policy step climbs the critics as they were before the last of the G steps on them.
  * The temperature's logarithm is the learned parameter.
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import sac
from agentkit.agents.common.ranges import Range
from agentkit.agents.off_policy import agent_of_loss
from agentkit.learning import Bootstrap, SoftLosses, Update
from agentkit.types import LossOutput, Nest, ReplaySample

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config(sac.EnsembleConfig):
    """Settings of DroQ, beside those of `sac.EnsembleConfig`.

    Attributes:
        dropout_rate: the chance that a hidden unit of a critic is dropped, in [0, 1).
    """

    dropout_rate: Annotated[float, Range("in [0, 1)", lambda value: 0 <= value < 1)] = 0.01


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> sac.Networks:
    """As of SAC, but that a critic is applied to ``params, key, observation, action``: the key says what is dropped."""
    plain = sac.make_networks(environment_spec, config, "DroQ")
    transformed: hk.Transformed = hk.transform(
        lambda observation, action: nets.dropout_critic(observation, action, config.hidden_sizes, config.dropout_rate)
    )
    examples = (specs.zeros(environment_spec.observations), specs.zeros(environment_spec.actions))
    inputs = jax.tree.map(lambda x: x[None], examples)
    critic = nets.Network(lambda key: transformed.init(key, *inputs), transformed.apply)
    return plain._replace(critic=critic)


def make_losses(networks: sac.Networks, config: Config) -> SoftLosses:
    """The losses of algorithm 2 on a batch of `Transition`s ``[B, ...]``; leaves of `critics` are ``[2, ...]``."""
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, 0, None, None))  # [2, B]

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        sample_key, *keys = jax.random.split(key, 1 + 2 * NUM_CRITICS)
        keys_tm1, keys_t = jnp.stack(keys[:NUM_CRITICS]), jnp.stack(keys[NUM_CRITICS:])

        def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:  # The targets' units drop, too.
            return jnp.min(critics_at(critics, keys_t, observation, action), axis=0)

        target = sac.targets(networks, least, bootstrap, batch, sample_key)
        twins_tm1 = critics_at(critics, keys_tm1, batch.data.observation, batch.data.action)  # [2, B]
        gap = jnp.mean(jnp.abs(twins_tm1[0] - twins_tm1[1]))
        return sac.ensemble_loss(twins_tm1, target, {"q": jnp.mean(twins_tm1), "critics_gap": gap}, batch, config)

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, batch: ReplaySample, key: jax.Array) -> Any:
        sample_key, *keys = jax.random.split(key, 1 + NUM_CRITICS)

        def mean(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
            return jnp.mean(critics_at(critics, jnp.stack(keys), observation, action), axis=0)

        return sac.policy_loss(networks, mean, policy, critics, temperature, batch, sample_key)

    return SoftLosses(critic_loss, policy_loss)


def fit(losses: SoftLosses, networks: sac.Networks, config: Config) -> Update:
    """A step on both critics, and on policy and temperature at each `policy_period`-th (paper, algorithm 2)."""
    return sac.fit_ensemble(losses, networks, config, NUM_CRITICS)


make_agent = agent_of_loss(Config, make_networks, sac.make_policy, make_losses, fit)
