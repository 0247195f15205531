"""TD3: twin delayed DDPG (Fujimoto et al. 2018, "Addressing Function Approximation Error", 1802.09477).

DDPG with three remedies for overestimated values: the smaller of two critics, target actions with clipped
noise, and a policy and targets that move less often than the critics.

Deviations from the paper:
  * Network sizes, batch size and learning rate are those of the authors' later code (256 x 256, 256, 3e-4);
    the paper has 400 x 300, 100 and 1e-3.
  * 1,000 uniform actions at first everywhere; the paper takes 10,000 where episodes do not terminate early.
  * Weights begin orthogonal, those of the policy's last layer small.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import learning, specs
from agentkit import networks as nets
from agentkit.agents.common.ranges import NotNegative
from agentkit.agents.off_policy import DeterministicConfig, agent_of_loss, explore_actions, mean_loss
from agentkit.learning import ActorCriticLosses, PolicyCritic, Update
from agentkit.networks import ActorCriticNetworks
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(DeterministicConfig):
    """Settings of TD3, beside those of `DeterministicConfig`.

    Attributes:
        learning_rate: Adam's step size, for policy and critics.
        tau: fraction by which all targets move when the policy does, in (0, 1].
        policy_period: d, critic updates for each update of policy and targets.
        target_noise: sigma, standard deviation of the noise on target actions, in units of half their range.
        target_noise_clip: c, the largest such noise.
    """

    learning_rate: float = 3e-4
    tau: float = 0.005
    policy_period: int = 2
    target_noise: NotNegative = 0.2
    target_noise_clip: NotNegative = 0.5


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> ActorCriticNetworks:
    """A policy and twin critics for an environment of continuous actions in [-1, 1]."""
    return nets.deterministic_networks(environment_spec, "TD3", config.hidden_sizes, nets.twin_action_values)


def smoothed_action(action: jax.Array, noise: jax.Array, max_noise: float) -> jax.Array:
    """Target policy smoothing (paper, eq. 14): clipped noise on actions ``[..., A]`` in [-1, 1]."""
    return jnp.clip(action + jnp.clip(noise, -max_noise, max_noise), -1.0, 1.0)


def make_losses(networks: ActorCriticNetworks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    twins_at = networks.critic.apply

    def critic_loss(critics: Any, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        plain = networks.policy.apply(targets.policy, o_t)
        noise = config.target_noise * jax.random.normal(key, plain.shape)
        next_action = smoothed_action(plain, noise, config.target_noise_clip)
        q_t = jnp.minimum(*twins_at(targets.critic, o_t, next_action))  # eq. 10
        twins_tm1 = twins_at(critics, o_tm1, action)
        errors = [learning.action_value_error(q_tm1, reward, discount, q_t) for q_tm1 in twins_tm1]
        squared = jnp.square(errors[0]) + jnp.square(errors[1])  # [B]
        metrics = {"q": jnp.mean(twins_tm1[0]), "critics_gap": jnp.mean(jnp.abs(twins_tm1[0] - twins_tm1[1]))}
        return mean_loss(squared, metrics, batch, config, priorities=jnp.abs(errors[0]))

    def first_at(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return twins_at(critics, observation, action)[0]

    return ActorCriticLosses(critic_loss, learning.deterministic_policy_loss(networks.policy.apply, first_at))


def fit(losses: ActorCriticLosses, networks: ActorCriticNetworks, config: Config) -> Update:
    """A step on both critics; on the policy, and of all targets, at each `policy_period`-th (paper, algorithm 1)."""
    rates = (config.learning_rate, config.learning_rate)
    return learning.adam_actor_critic(losses, networks, rates, learning.polyak(config.tau), config.policy_period)


make_agent = agent_of_loss(Config, make_networks, explore_actions, make_losses, fit)
