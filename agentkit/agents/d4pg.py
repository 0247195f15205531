"""D4PG: distributed distributional DDPG (Barth-Maron et al. 2018, "Distributed Distributional ...", 1804.08617).

DDPG whose critic predicts the distribution of n-step returns, as probabilities of fixed atoms. The "distributed"
of its name is `agentkit launch d4pg --actors N`.

Deviations from the paper:
  * Policy and critic are updated one after the other, the policy on the critic as it has just become.
  * The distribution is categorical; the paper's mixture of Gaussians, which it found worse, is left out.
  * Prioritised replay is off by default (the paper found that it helps little); the priority of an item is the
    divergence of the critic from its target, and importance weights are divided by the largest of the batch.
  * An actor's first `num_random_steps` actions are uniform.
  * Smaller networks, and a learning rate that fits short trainings (the paper's is 1e-4).
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
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
from agentkit.replay import Prioritized, Replay, Table, Uniform
from agentkit.types import LossOutput, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of D4PG.

    Attributes:
        hidden_sizes: units of each hidden layer of policy and critic.
        num_atoms: values that the critic's distribution is spread over.
        vmin: the least of them; choose the range so that it holds all discounted returns.
        vmax: the greatest.
        n_step: rewards summed before bootstrapping.
        discount: gamma, in [0, 1].
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        target_update_period: updates between copies to both targets.
        exploration_noise: standard deviation of the noise on actions, in units of half their range.
        num_random_steps: an actor's first steps, with uniform actions.
        batch_size: transitions per update.
        updates_per_step: gradient updates per item inserted: one a step, and n_step - 1 more an episode.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        prioritized: prioritised replay by the critic's divergence from its target (Schaul et al. 2016).
        priority_exponent: alpha, how much prioritisation is used, where `prioritized`.
        importance_exponent: beta, how much of its bias is undone, where `prioritized`.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    num_atoms: int = 51
    vmin: float = -150.0
    vmax: float = 150.0
    n_step: int = 5
    discount: float = 0.99
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    target_update_period: int = 100
    exploration_noise: float = 0.3
    num_random_steps: int = 1_000
    batch_size: int = 256
    updates_per_step: float = 1.0
    updates_per_call: int = 1
    replay_size: int = 1_000_000
    min_replay_size: int = 1_000
    prioritized: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1].
        critic: ``observation [B, ...], action [B, A] -> logits [B, N]``, of the atoms' probabilities.
        atoms: the values that a return can take, rising, float32 ``[N]``.
        action_shape: ``(A,)``.
    """

    policy: nets.Network
    critic: nets.Network
    atoms: jax.Array
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy and a distributional critic for an environment of continuous actions in [-1, 1]."""
    if config.num_atoms < 2:
        raise ConfigError(f"num_atoms must be at least 2, found {config.num_atoms}.")
    if not config.vmin < config.vmax:
        raise ConfigError(f"vmin must be less than vmax, found {config.vmin} and {config.vmax}.")
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(environment_spec.actions, "D4PG")
    return Networks(
        policy=nets.network(lambda o: nets.tanh_action(o, size, config.hidden_sizes), observations),
        critic=nets.network(
            lambda o, a: nets.critic(o, a, config.hidden_sizes, config.num_atoms), observations, actions
        ),
        atoms=jnp.linspace(config.vmin, config.vmax, config.num_atoms, dtype=jnp.float32),
        action_shape=(size,),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """The network's actions; an actor adds independent Gaussian noise, and its first ones are uniform."""
    if evaluation:
        return actors.noiseless(networks.policy.apply)
    shape, sigma = networks.action_shape, config.exploration_noise
    return actors.noisy(networks.policy.apply, shape, sigma, config.num_random_steps)


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    policy_at, logits_at, atoms = networks.policy.apply, networks.critic.apply, networks.atoms

    def critic_loss(critic: Any, targets: ActorCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        (o_tm1, action, r_t, discount_t, o_t, _), info = batch.data, batch.info
        logits_t = logits_at(targets.critic, o_t, policy_at(targets.policy, o_t))  # [B, N]
        logits_tm1 = logits_at(critic, o_tm1, action)
        divergence = losses.categorical_td_loss(logits_tm1, r_t, discount_t, logits_t, atoms)  # [B], eq. 4
        metrics = {"q": jnp.mean(nets.categorical_mean(logits_tm1, atoms))}
        if not config.prioritized:
            return LossOutput(jnp.mean(divergence), metrics)
        weights = losses.importance_weights(info.probability, info.table_size, config.importance_exponent)
        return LossOutput(jnp.mean(weights * divergence), metrics, divergence)

    def policy_loss(policy: Any, critic: Any, batch: ReplaySample) -> jax.Array:
        o_tm1 = batch.data.observation
        q = nets.categorical_mean(logits_at(critic, o_tm1, policy_at(policy, o_tm1)), atoms)
        return -jnp.mean(q)  # Its gradient is eq. 5.

    return ActorCriticLosses(critic_loss, policy_loss)


class Agent:
    """D4PG, as `agentkit.core.Agent`."""

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
        config = self.config
        return learning.deterministic_actor_critic(
            self._make_losses(networks, config),
            ActorCritic(networks.policy.init, networks.critic.init),
            ActorCritic(learning.adam(config.policy_learning_rate), learning.adam(config.critic_learning_rate)),
            learning.periodic(config.target_update_period),
        )

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        return [
            Table(
                TABLE,
                NStepAdder.layout(environment_spec),
                max_size=config.replay_size,
                sampler=Prioritized(config.priority_exponent) if config.prioritized else Uniform(),
                rate_limiter=learning.rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size),
            )
        ]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`; new items get priority 1 (divergences replace it once they are drawn)."""
        config = self.config
        writer = replay.writer(NStepAdder.history(config.n_step))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=config.n_step, discount=config.discount)
