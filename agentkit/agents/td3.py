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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import learning, losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.checks import check_not_negative
from agentkit.agents.off_policy import DeterministicConfig, agent_of_loss, explore_actions, mean_loss
from agentkit.learning import ActorCritic, ActorCriticLosses, Update
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
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_not_negative(self, "target_noise", "target_noise_clip")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1].
        critics: ``observation [B, ...], action [B, A] -> (q [B], q [B])``, two critics that share nothing.
        action_shape: ``(A,)``.
    """

    policy: nets.Network
    critics: nets.Network
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy and twin critics for an environment of continuous actions in [-1, 1]."""
    size = specs.canonical_action_size(environment_spec.actions, "TD3")

    def twins(observation: Nest, action: jax.Array) -> tuple[jax.Array, ...]:
        # No array [2, B]: to climb one of its rows would compute the other's gradient, too.
        return tuple(nets.critic(observation, action, config.hidden_sizes)[:, 0] for _ in range(2))

    return Networks(
        policy=nets.network(
            lambda observation: nets.tanh_action(observation, size, config.hidden_sizes),
            environment_spec.observations,
        ),
        critics=nets.network(twins, environment_spec.observations, environment_spec.actions),
        action_shape=(size,),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """The network's actions; to explore, with independent Gaussian noise."""
    return explore_actions(networks, config, evaluation)


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""

    def smoothed(policy: Any, observation: Nest, key: jax.Array) -> jax.Array:
        action = networks.policy.apply(policy, observation)
        noise = config.target_noise * jax.random.normal(key, action.shape)
        return losses.smoothed_action(action, noise, config.target_noise_clip)  # eq. 14

    def critic_loss(critics: Any, targets: ActorCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        next_action = smoothed(targets.policy, o_t, key)
        q_t = jnp.minimum(*networks.critics.apply(targets.critic, o_t, next_action))  # eq. 10
        twins_tm1 = networks.critics.apply(critics, o_tm1, action)
        errors = [losses.action_value_error(q_tm1, reward, discount, q_t) for q_tm1 in twins_tm1]
        squared = jnp.square(errors[0]) + jnp.square(errors[1])  # [B]
        metrics = {"q": jnp.mean(twins_tm1[0]), "critics_gap": jnp.mean(jnp.abs(twins_tm1[0] - twins_tm1[1]))}
        return mean_loss(squared, metrics, batch, config, priorities=jnp.abs(errors[0]))

    def policy_loss(policy: Any, critics: Any, batch: ReplaySample) -> jax.Array:
        action = networks.policy.apply(policy, batch.data.observation)
        return -jnp.mean(networks.critics.apply(critics, batch.data.observation, action)[0])

    return ActorCriticLosses(critic_loss, policy_loss)


def fit(make_losses: Callable[[Networks, Config], ActorCriticLosses], networks: Networks, config: Config) -> Update:
    """A step on both critics; on the policy, and of all targets, at each `policy_period`-th (paper, algorithm 1)."""
    return learning.deterministic_actor_critic(
        make_losses(networks, config),
        ActorCritic(networks.policy.init, networks.critics.init),
        ActorCritic(learning.adam(config.learning_rate), learning.adam(config.learning_rate)),
        learning.polyak(config.tau),
        config.policy_period,
    )


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
