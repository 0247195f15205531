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

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, epsilon_greedy, linear
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Replay, Table
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of C51.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        num_atoms: returns that the distributions are made of, at least 2 (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
        n_step: rewards summed before bootstrapping.
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size.
        batch_size: transitions per update.
        target_update_period: updates between copies to the target network.
        updates_per_step: gradient updates per item inserted: one a step, and n_step - 1 more an episode.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        epsilon_start: chance of a random action at first.
        epsilon_end: chance of a random action after `epsilon_steps`.
        epsilon_steps: steps of an actor over which epsilon falls linearly.
        epsilon_evaluation: chance of a random action in evaluation.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    num_atoms: int = 101
    vmin: float = -100.0
    vmax: float = 100.0
    n_step: int = 10
    discount: float = 0.99
    learning_rate: float = 5e-4
    batch_size: int = 128
    target_update_period: int = 200
    updates_per_step: float = 0.5
    updates_per_call: int = 1
    replay_size: int = 100_000
    min_replay_size: int = 1_000
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 5_000
    epsilon_evaluation: float = 0.0


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
    """Epsilon-greedy in the mean return; its state is the number of steps taken, int32 ``[]``."""

    def q_values(params: Any, observation: Nest) -> jax.Array:
        return nets.categorical_mean(networks.logits(params, observation), networks.atoms)

    if evaluation:
        return epsilon_greedy(q_values, lambda _: config.epsilon_evaluation)
    return epsilon_greedy(q_values, linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps))


def make_loss(networks: Networks, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    del config

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        transition = batch.data
        logits_tm1 = networks.logits(params, transition.observation)  # [B, A, N]
        logits_t = networks.logits(target_params, transition.next_observation)
        per_item = losses.categorical_q_learning_loss(
            logits_tm1,
            transition.action,
            transition.reward,
            transition.discount,
            logits_t,
            nets.categorical_mean(logits_t, networks.atoms),
            networks.atoms,
        )
        q_tm1 = nets.categorical_mean(logits_tm1, networks.atoms)
        return LossOutput(jnp.mean(per_item), {"q": jnp.mean(q_tm1)})

    return loss


class Agent:
    """C51, as `agentkit.core.Agent`."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
        make_loss: Callable[[Networks, Config], Loss] = make_loss,
    ):
        """Takes the settings, and other networks or another loss than this file's."""
        self.config = Config() if config is None else config
        self._make_networks = make_networks
        self._make_loss = make_loss

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        return BatchPlan(TABLE, self.config.batch_size, self.config.updates_per_call)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Networks:
        """See `core.Agent`."""
        return self._make_networks(environment_spec, self.config)

    def make_policy(self, networks: Networks, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return make_policy(networks, self.config, evaluation)

    def make_update(self, networks: Networks) -> Update:
        """See `core.Agent`."""
        follow = periodic(self.config.target_update_period)
        return sgd(self._make_loss(networks, self.config), networks.init, adam(self.config.learning_rate), follow)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        limiter = rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size)
        layout = NStepAdder.layout(environment_spec)
        return [Table(TABLE, layout, max_size=config.replay_size, rate_limiter=limiter)]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`."""
        config = self.config
        writer = replay.writer(NStepAdder.history(config.n_step))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=config.n_step, discount=config.discount)
