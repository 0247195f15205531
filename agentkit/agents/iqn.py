"""IQN: implicit quantile networks (Dabney et al. 2018, "Implicit Quantile Networks for Distributional RL", 1806.06923).

The network takes a fraction tau beside the observation and gives that quantile of each action's return, so it knows
the whole distribution. Actions are chosen by the mean of samples of it, or by the mean of its worst part.

Deviations from the paper:
  * Of its risk-sensitive policies the conditional value at risk (`risk_level` < 1), and the neutral one (1).
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, explore, linear
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Replay, Table
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of IQN.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images), at least one.
        num_cosines: features of a fraction tau, before the layer that embeds it (paper, eq. 4).
        num_quantiles: N, fractions drawn for each transition and learned at.
        num_target_quantiles: N', fractions drawn for each target.
        num_policy_quantiles: K, fractions drawn to choose an action by.
        risk_level: the share of the worst returns whose mean chooses actions, in (0, 1]; 1 for all of them.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper.
        n_step: rewards summed before bootstrapping.
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
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
    num_cosines: int = 64
    num_quantiles: int = 8
    num_target_quantiles: int = 8
    num_policy_quantiles: int = 32
    risk_level: float = 1.0
    huber_delta: float = 1.0
    n_step: int = 10
    discount: float = 0.99
    learning_rate: float = 1e-3
    max_grad_norm: float | None = 10.0
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
        quantiles: ``(params, observation [B, ...], taus [B, N]) -> [B, N, A]``, the quantiles at the fractions `taus`.
    """

    init: Callable[[jax.Array], Any]
    quantiles: Callable[[Any, Nest, jax.Array], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A network of quantiles for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "IQN")

    def quantiles(observation: Nest, taus: jax.Array) -> jax.Array:
        return nets.implicit_quantiles(observation, taus, num_actions, config.hidden_sizes, config.num_cosines)

    taus_spec = specs.Array((config.num_quantiles,), np.float32)
    return Networks(*nets.network(quantiles, environment_spec.observations, taus_spec))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of K sampled quantiles (paper, eq. 2); state: int32 steps ``[]``."""
    epsilon = linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps)

    def act(params: Any, key: jax.Array, observation: Nest, num_steps: jax.Array) -> tuple[Nest, Nest, Nest]:
        taus_key, explore_key = jax.random.split(key)
        taus = risky_taus(taus_key, 1, config)
        quantiles = networks.quantiles(params, jax.tree.map(lambda x: x[None], observation), taus)[0]  # [K, A]
        chance = config.epsilon_evaluation if evaluation else epsilon(num_steps)
        return explore(explore_key, jnp.mean(quantiles, axis=0), chance), num_steps + 1, ()

    return Policy(act, init=lambda key: jnp.zeros((), jnp.int32))


def risky_taus(key: jax.Array, batch_size: int, config: Config) -> jax.Array:
    """Fractions to choose actions by, ``[B, K]``: uniform, but of the worst share only (paper, eq. 2, CVaR)."""
    return config.risk_level * jax.random.uniform(key, (batch_size, config.num_policy_quantiles))


def make_loss(networks: Networks, config: Config) -> Loss:
    """The loss of the paper's eq. 3 and algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        transition = batch.data
        (batch_size,) = transition.reward.shape
        key_tm1, key_t, selector_key = jax.random.split(key, 3)
        taus_tm1 = jax.random.uniform(key_tm1, (batch_size, config.num_quantiles))
        taus_t = jax.random.uniform(key_t, (batch_size, config.num_target_quantiles))
        taus_selector = risky_taus(selector_key, batch_size, config)
        quantiles_tm1 = networks.quantiles(params, transition.observation, taus_tm1)  # [B, N, A]
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1,
            taus_tm1,
            transition.action,
            transition.reward,
            transition.discount,
            networks.quantiles(target_params, transition.next_observation, taus_t),  # [B, N', A]
            networks.quantiles(target_params, transition.next_observation, taus_selector),  # [B, K, A]
            config.huber_delta,
        )
        return LossOutput(jnp.mean(per_item), {"q": jnp.mean(quantiles_tm1)})

    return loss


class Agent:
    """IQN, as `agentkit.core.Agent`."""

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
        if not config.hidden_sizes:
            raise ConfigError(f"hidden_sizes needs at least one layer, found {config.hidden_sizes}.")
        for name in ("num_cosines", "num_quantiles", "num_target_quantiles", "num_policy_quantiles"):
            if getattr(config, name) < 1:
                raise ConfigError(f"{name} must be at least 1, found {getattr(config, name)}.")
        if not 0 < config.risk_level <= 1:
            raise ConfigError(f"risk_level must be in (0, 1], found {config.risk_level}.")
        if not config.huber_delta >= 0:
            raise ConfigError(f"huber_delta must be at least 0, found {config.huber_delta}.")

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
        optimizer = adam(self.config.learning_rate, self.config.max_grad_norm)
        follow = periodic(self.config.target_update_period)
        return sgd(self._make_loss(networks, self.config), networks.init, optimizer, follow)

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
