"""Rainbow: six improvements of DQN in one agent (Hessel et al. 2018, "Rainbow: Combining Improvements", 1710.02298).

All of them, always:
  * double Q-learning (van Hasselt et al. 2016): the online network chooses the action to bootstrap from;
  * duelling networks (Wang et al. 2016): value and advantage streams, for each atom;
  * prioritised replay (Schaul et al. 2016), by the loss;
  * n-step returns (Sutton 1988);
  * distributions of returns (C51, Bellemare et al. 2017);
  * noisy networks (Fortunato et al. 2018, 1706.10295) for exploration, and no epsilon.

Deviations from the paper:
  * The correction of prioritised sampling does not grow in the course of training: `importance_exponent` is fixed.
  * New transitions get priority 1, not the largest priority so far.
  * An actor draws new noise at each step.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: see `c51` on the atoms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, feed_forward
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Prioritized, Replay, Table
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Rainbow.

    Attributes:
        hidden_sizes: units of each hidden layer of both streams (after the convolutions, for images).
        noise: sigma_0, the initial size of the noise on weights, >= 0.
        num_atoms: returns that the distributions are made of, at least 2 (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
        n_step: rewards summed before bootstrapping (the paper's 3).
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        batch_size: transitions per update.
        target_update_period: updates between copies to the target network.
        updates_per_step: gradient updates per item inserted: one a step, and n_step - 1 more an episode.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        priority_exponent: omega, how much replay prefers transitions of a large loss.
        importance_exponent: beta, how much of the bias of this is undone.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    noise: float = 0.5
    num_atoms: int = 101
    vmin: float = -100.0
    vmax: float = 100.0
    n_step: int = 10
    discount: float = 0.99
    learning_rate: float = 5e-4
    max_grad_norm: float | None = 10.0
    batch_size: int = 128
    target_update_period: int = 200
    updates_per_step: float = 0.5
    updates_per_call: int = 1
    replay_size: int = 100_000
    min_replay_size: int = 1_000
    priority_exponent: float = 0.5
    importance_exponent: float = 0.5


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        logits: ``(params, key, observation [B, ...]) -> [B, A, N]``, of the probability of each atom; noise on the
            weights is drawn from `key`, one draw for all of the batch, and there is none where it is None.
        atoms: the returns, rising, float32 ``[N]``.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, jax.Array | None, Nest], jax.Array]
    atoms: jax.Array


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A noisy duelling network of return distributions for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Rainbow")

    def logits(observation: Nest) -> jax.Array:
        return nets.noisy_duelling_logits(
            observation, num_actions, config.num_atoms, config.hidden_sizes, config.noise
        )

    network: hk.Transformed = hk.transform(logits)
    example = specs.zeros(specs.add_leading(environment_spec.observations, 1))
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return Networks(lambda key: network.init(key, example), network.apply, atoms)


def make_policy(networks: Networks, evaluation: bool = False) -> Policy:
    """Greedy in the mean return under fresh noise; in evaluation without noise."""

    def act(params: Any, key: jax.Array, observation: Nest) -> jax.Array:
        batch = jax.tree.map(lambda x: x[None], observation)
        logits = networks.logits(params, None if evaluation else key, batch)
        return jnp.argmax(nets.categorical_mean(logits, networks.atoms)[0]).astype(jnp.int32)

    return feed_forward(act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """The paper's section 4 on a batch of `Transition`s ``[B, ...]``; the loss of each is its priority."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        transition = batch.data
        online_key, target_key, selector_key = jax.random.split(key, 3)  # independent noise: 1706.10295, eq. 15
        logits_tm1 = networks.logits(params, online_key, transition.observation)  # [B, A, N]
        logits_t = networks.logits(target_params, target_key, transition.next_observation)
        selector = networks.logits(params, selector_key, transition.next_observation)
        per_item = losses.categorical_q_learning_loss(
            logits_tm1,
            transition.action,
            transition.reward,
            transition.discount,
            logits_t,
            nets.categorical_mean(selector, networks.atoms),
            networks.atoms,
        )  # [B]
        weights = losses.importance_weights(
            batch.info.probability, batch.info.table_size, config.importance_exponent
        )
        q_tm1 = nets.categorical_mean(logits_tm1, networks.atoms)
        return LossOutput(jnp.mean(weights * per_item), {"q": jnp.mean(q_tm1)}, per_item)

    return loss


class Agent:
    """Rainbow, as `agentkit.core.Agent`."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
        make_loss: Callable[[Networks, Config], Loss] = make_loss,
    ):
        """Takes the settings, and other networks or another loss than this file's."""
        self.config = config = Config() if config is None else config
        self._make_networks = make_networks
        self._make_loss = make_loss
        if not config.noise >= 0:
            raise ConfigError(f"noise must be at least 0, found {config.noise}.")

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        return BatchPlan(TABLE, self.config.batch_size, self.config.updates_per_call)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Networks:
        """See `core.Agent`."""
        return self._make_networks(environment_spec, self.config)

    def make_policy(self, networks: Networks, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return make_policy(networks, evaluation)

    def make_update(self, networks: Networks) -> Update:
        """See `core.Agent`."""
        optimizer = adam(self.config.learning_rate, self.config.max_grad_norm)
        follow = periodic(self.config.target_update_period)
        return sgd(self._make_loss(networks, self.config), networks.init, optimizer, follow)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        return [
            Table(
                TABLE,
                NStepAdder.layout(environment_spec),
                max_size=config.replay_size,
                sampler=Prioritized(config.priority_exponent),
                rate_limiter=rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size),
            )
        ]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`; new items get priority 1 (their losses replace it once they are drawn)."""
        config = self.config
        writer = replay.writer(NStepAdder.history(config.n_step))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=config.n_step, discount=config.discount)
