"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", 1812.05905).

Twin critics, a tanh-Gaussian policy and a temperature learned towards a target entropy.

Deviations from the paper:
  * The temperature's logarithm is the learned parameter (as in the authors' code).
  * An actor begins with `num_random_steps` uniform actions, so that the first batches are varied.
  * The policy climbs the critics as they were before the update's own step on them.
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import actors, learning, specs
from agentkit import networks as nets
from agentkit.agents.off_policy import SoftConfig, agent_of_loss, mean_loss
from agentkit.learning import ActorCritic, Bootstrap, SoftLosses, Update
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(SoftConfig):
    """Settings of SAC for continuous actions, beside those of `SoftConfig`.

    Attributes:
        target_entropy: entropy in nats that the temperature is tuned to; None for minus the number
            of action dimensions (Haarnoja et al. 2018, appendix D).
        min_log_std: least log standard deviation of the policy before tanh.
        max_log_std: greatest one.
    """

    target_entropy: float | None = None
    min_log_std: float = -10.0
    max_log_std: float = 2.0


Networks = nets.ActorCriticNetworks
"""The policy gives a `networks.TanhNormal`; there is one critic, which each set of parameters is applied to."""


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, agent: str = "SAC") -> Networks:
    """Policy and critic for an environment of continuous actions in (-1, 1); `agent` is who needs them."""
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    return nets.actor_critic_networks(
        environment_spec,
        agent,
        policy=lambda observation, size: nets.tanh_normal_action(observation, size, sizes, *log_stds),
        critic=lambda observation, action: nets.action_value(observation, action, sizes),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy (uniform at first); in evaluation takes its mode."""
    if evaluation:
        return actors.likeliest(networks.policy.apply, nets.mode)

    def uniform(key: jax.Array, observation: Nest) -> jax.Array:
        del observation
        return jax.random.uniform(key, networks.action_shape, minval=-1.0, maxval=1.0)

    return actors.uniform_then_samples(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


def make_losses(networks: Networks, config: Config) -> SoftLosses:
    """The losses of critics and policy on a batch of `Transition`s ``[B, ...]``; `critics` are a pair of parameters."""

    def both(critics: Any, observation: Nest, action: jax.Array) -> list[jax.Array]:
        return [networks.critic.apply(params, observation, action) for params in critics]

    def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.minimum(*both(critics, observation, action))

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        target = targets(networks, least, bootstrap, batch, key)
        q_1, q_2 = both(critics, batch.data.observation, batch.data.action)
        per_item = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # eq. 5
        return mean_loss(per_item, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))

    return SoftLosses(critic_loss, functools.partial(policy_loss, networks, least))


Value = Callable[[Any, Nest, jax.Array], jax.Array]
"""``(critics, observation [B, ...], action [B, A]) -> q [B]``, what critics together say."""


def targets(networks: Networks, value: Value, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> jax.Array:
    """For the critics, ``[B]``: reward, and the soft value of an action of the policy (eq. 2 and 3)."""
    _, _, reward, discount, o_t, _ = batch.data
    a_t, log_prob = nets.sample_and_log_prob(networks.policy.apply(bootstrap.policy, o_t), key)
    return learning.soft_target(reward, discount, value(bootstrap.critics, o_t, a_t), log_prob, bootstrap.temperature)


def policy_loss(
    networks: Networks,
    value: Value,
    policy: Any,
    critics: Any,
    temperature: jax.Array,
    batch: ReplaySample,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The policy's loss (eq. 9) and its mean log-probability, ``[]``."""
    observation = batch.data.observation
    action, log_prob = nets.sample_and_log_prob(networks.policy.apply(policy, observation), key)
    return jnp.mean(temperature * log_prob - value(critics, observation, action)), jnp.mean(log_prob)


def fit(losses: SoftLosses, networks: Networks, config: Config) -> Update:
    """One step each on critics, policy and temperature (paper, algorithm 1)."""
    init = ActorCritic(networks.policy.init, lambda keys: tuple(map(networks.critic.init, keys)))
    return learning.adam_soft_actor_critic(losses, init, 2, config, target_entropy(networks, config))


def target_entropy(networks: Networks, config: Config) -> float:
    """Of a tanh-Gaussian policy, in nats."""
    return -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy


@dataclasses.dataclass(frozen=True)
class EnsembleConfig(Config):
    """Settings of SAC with many critics that are updated often (REDQ, DroQ), beside those of SAC.

    Attributes:
        policy_period: critic updates for each update of policy and temperature; the papers' is `updates_per_step`.
    """

    updates_per_step: float = 20.0
    updates_per_call: int = 20
    policy_period: int = 20


def ensemble_loss(
    q_tm1: jax.Array, target: jax.Array, metrics: dict[str, jax.Array], batch: ReplaySample, config: Config
) -> LossOutput:
    """Half the squared errors of N critics' values ``[N, B]`` from a target ``[B]``, summed over the critics."""
    errors = q_tm1 - target[None]
    per_item = 0.5 * jnp.sum(jnp.square(errors), axis=0)
    return mean_loss(per_item, metrics, batch, config, priorities=jnp.mean(jnp.abs(errors), axis=0))


def fit_ensemble(losses: SoftLosses, networks: Networks, config: EnsembleConfig, num_critics: int) -> Update:
    """A step on all critics, leaves ``[N, ...]``, and on policy and temperature at each `policy_period`-th."""
    init, entropy = ActorCritic(networks.policy.init, jax.vmap(networks.critic.init)), target_entropy(networks, config)
    return learning.adam_soft_actor_critic(losses, init, num_critics, config, entropy, config.policy_period)


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
