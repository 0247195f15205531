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

from agentkit import actors, learning, specs
from agentkit import networks as nets
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import ActorCritic, ActorCriticLosses
from agentkit.replay import Replay, Table
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of TD3.

    Attributes:
        hidden_sizes: units of each hidden layer, in the policy and in each critic.
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size, for policy and critics.
        tau: fraction by which all targets move when the policy does, in (0, 1].
        policy_period: d, critic updates for each update of policy and targets.
        target_noise: sigma, standard deviation of the noise on target actions, in units of half their range.
        target_noise_clip: c, the largest such noise.
        exploration_noise: standard deviation of the noise on an actor's actions, in the same units.
        num_random_steps: an actor's first steps, with uniform actions.
        batch_size: transitions per update.
        updates_per_step: critic updates per environment step.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    discount: float = 0.99
    learning_rate: float = 3e-4
    tau: float = 0.005
    policy_period: int = 2
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    exploration_noise: float = 0.1
    num_random_steps: int = 1_000
    batch_size: int = 256
    updates_per_step: float = 1.0
    updates_per_call: int = 1
    replay_size: int = 1_000_000
    min_replay_size: int = 1_000


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


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """The network's actions; to explore, with independent Gaussian noise, and uniform at first."""
    network = networks.policy.apply
    if evaluation:
        return actors.noiseless(network)
    return actors.noisy(network, networks.action_shape, config.exploration_noise, config.num_random_steps)


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    if config.target_noise < 0 or config.target_noise_clip < 0:
        raise ConfigError(
            "target_noise and target_noise_clip must be at least 0, found "
            f"{config.target_noise} and {config.target_noise_clip}."
        )

    def smoothed(policy: Any, observation: Nest, key: jax.Array) -> jax.Array:
        action = networks.policy.apply(policy, observation)
        noise = config.target_noise * jax.random.normal(key, action.shape)
        return losses.smoothed_action(action, noise, config.target_noise_clip)  # eq. 14

    def critic_loss(critics: Any, targets: ActorCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        transition = batch.data
        next_action = smoothed(targets.policy, transition.next_observation, key)
        q_t = jnp.minimum(*networks.critics.apply(targets.critic, transition.next_observation, next_action))  # eq. 10
        twins_tm1 = networks.critics.apply(critics, transition.observation, transition.action)
        squared = [
            jnp.square(losses.action_value_error(q_tm1, transition.reward, transition.discount, q_t))
            for q_tm1 in twins_tm1
        ]
        gap = jnp.mean(jnp.abs(twins_tm1[0] - twins_tm1[1]))
        return LossOutput(jnp.mean(sum(squared)), {"q": jnp.mean(twins_tm1[0]), "critics_gap": gap})

    def policy_loss(policy: Any, critics: Any, batch: ReplaySample) -> jax.Array:
        action = networks.policy.apply(policy, batch.data.observation)
        return -jnp.mean(networks.critics.apply(critics, batch.data.observation, action)[0])

    return ActorCriticLosses(critic_loss, policy_loss)


class Agent:
    """TD3, as `agentkit.core.Agent`."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
        make_losses: Callable[[Networks, Config], ActorCriticLosses] = make_losses,
    ):
        """Takes the settings, and other networks or losses than this file's."""
        self.config = Config() if config is None else config
        self._make_networks = make_networks
        self._make_losses = make_losses

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        return BatchPlan(TABLE, self.config.batch_size, self.config.updates_per_call)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Networks:
        """See `core.Agent`."""
        return self._make_networks(environment_spec, self.config)

    def make_policy(self, networks: Networks, evaluation: bool = False) -> actors.Policy:
        """See `core.Agent`."""
        return make_policy(networks, self.config, evaluation)

    def make_update(self, networks: Networks) -> learning.Update:
        """See `core.Agent`."""
        optimizer = learning.adam(self.config.learning_rate)
        return learning.deterministic_actor_critic(
            self._make_losses(networks, self.config),
            ActorCritic(networks.policy.init, networks.critics.init),
            ActorCritic(optimizer, optimizer),
            learning.polyak(self.config.tau),
            self.config.policy_period,
        )

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        limiter = learning.rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size)
        layout = NStepAdder.layout(environment_spec)
        return [Table(TABLE, layout, max_size=config.replay_size, rate_limiter=limiter)]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`."""
        config = self.config
        writer = replay.writer(NStepAdder.history(1))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=1, discount=config.discount)
