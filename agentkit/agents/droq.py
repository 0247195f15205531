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
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import soft
from agentkit.agents.off_policy import agent_of_loss, mean_loss
from agentkit.errors import ConfigError
from agentkit.learning import ActorCritic, Bootstrap, SoftLosses, Update, soft_target
from agentkit.types import LossOutput, ReplaySample

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config(soft.ContinuousConfig):
    """Settings of DroQ, beside those of `soft.ContinuousConfig`.

    Attributes:
        dropout_rate: the chance that a hidden unit of a critic is dropped, in [0, 1).
        policy_period: critic updates for each update of policy and temperature; the paper's is `updates_per_step`.
    """

    dropout_rate: float = 0.01
    updates_per_step: float = 20.0
    updates_per_call: int = 20
    policy_period: int = 20

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        if not 0 <= self.dropout_rate < 1:
            raise ConfigError(f"dropout_rate must be in [0, 1), found {self.dropout_rate}.")


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> soft.Networks:
    """As of SAC, but that a critic is applied to ``params, key, observation, action``: the key says what is dropped."""
    plain = soft.make_networks(environment_spec, config, "DroQ")
    transformed: hk.Transformed = hk.transform(
        lambda observation, action: nets.dropout_critic(observation, action, config.hidden_sizes, config.dropout_rate)
    )
    examples = (specs.zeros(environment_spec.observations), specs.zeros(environment_spec.actions))
    inputs = jax.tree.map(lambda x: x[None], examples)
    critic = nets.Network(lambda key: transformed.init(key, *inputs), transformed.apply)
    return plain._replace(critic=critic)


make_policy = soft.make_policy


def make_losses(networks: soft.Networks, config: Config) -> SoftLosses:
    """The losses of algorithm 2 on a batch of `Transition`s ``[B, ...]``; leaves of `critics` are ``[2, ...]``."""
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, 0, None, None))  # [2, B]

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        sample_key, *keys = jax.random.split(key, 1 + 2 * NUM_CRITICS)
        keys_tm1, keys_t = jnp.stack(keys[:NUM_CRITICS]), jnp.stack(keys[NUM_CRITICS:])
        a_t, log_prob = nets.sample_and_log_prob(networks.policy.apply(bootstrap.policy, o_t), sample_key)
        q_t = jnp.min(critics_at(bootstrap.critics, keys_t, o_t, a_t), axis=0)  # The targets' units drop, too.
        target = soft_target(reward, discount, q_t, log_prob, bootstrap.temperature)
        twins_tm1 = critics_at(critics, keys_tm1, o_tm1, action)  # [2, B]
        errors = twins_tm1 - target[None]
        metrics = {"q": jnp.mean(twins_tm1), "critics_gap": jnp.mean(jnp.abs(errors[0] - errors[1]))}
        priorities = jnp.mean(jnp.abs(errors), axis=0)
        return mean_loss(0.5 * jnp.sum(jnp.square(errors), axis=0), metrics, batch, config, priorities)

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, batch: ReplaySample, key: jax.Array) -> Any:
        sample_key, *keys = jax.random.split(key, 1 + NUM_CRITICS)
        o_tm1 = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(networks.policy.apply(policy, o_tm1), sample_key)
        mean_q = jnp.mean(critics_at(critics, jnp.stack(keys), o_tm1, action), axis=0)
        return jnp.mean(temperature * log_prob - mean_q), jnp.mean(log_prob)

    return SoftLosses(critic_loss, policy_loss)


def fit(make_losses: Any, networks: soft.Networks, config: Config) -> Update:
    """A step on both critics, and on policy and temperature at each `policy_period`-th (paper, algorithm 2)."""
    init = ActorCritic(networks.policy.init, jax.vmap(networks.critic.init))
    entropy = soft.squashed_entropy(networks, config)
    return soft.fit_soft(make_losses(networks, config), init, NUM_CRITICS, config, entropy, config.policy_period)


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
