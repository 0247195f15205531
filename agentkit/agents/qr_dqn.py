"""QR-DQN: quantile regression DQN (Dabney et al. 2018, "Distributional RL with Quantile Regression", 1710.10044).

The network gives N quantiles of each action's return, at fixed fractions, so that returns need no bounds; actions
are chosen by their mean.

Deviations from the paper:
  * The quantile Huber loss is divided by `huber_delta`, as in Dabney et al. 2018 (1806.06923), so that it tends to
    quantile regression as `huber_delta` tends to 0; at the paper's 1 there is no difference.
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: 51 quantiles instead of 200.
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
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Replay, Table
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of QR-DQN.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        num_quantiles: N, quantiles of each action's return.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper (the
            paper's QR-DQN-0).
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
    num_quantiles: int = 51
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
        quantiles: ``(params, observation [B, ...]) -> [B, A, N]``; quantile i of N at the fraction (2 i + 1) / 2 N.
    """

    init: Callable[[jax.Array], Any]
    quantiles: Callable[[Any, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A network of quantiles for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "QR-DQN")

    def quantiles(observation: Nest) -> jax.Array:
        return nets.action_outputs(observation, num_actions, config.num_quantiles, config.hidden_sizes)

    return Networks(*nets.network(quantiles, environment_spec.observations))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy in the mean of the quantiles; its state is the number of steps taken, int32 ``[]``."""

    def q_values(params: Any, observation: Nest) -> jax.Array:
        return jnp.mean(networks.quantiles(params, observation), axis=-1)

    if evaluation:
        return epsilon_greedy(q_values, lambda _: config.epsilon_evaluation)
    return epsilon_greedy(q_values, linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps))


def make_loss(networks: Networks, config: Config) -> Loss:
    """Algorithm 1 of the paper on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    midpoints = (jnp.arange(config.num_quantiles) + 0.5) / config.num_quantiles  # lemma 2, [N]

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        transition = batch.data
        quantiles_tm1 = jnp.swapaxes(networks.quantiles(params, transition.observation), 1, 2)  # [B, N, A]
        quantiles_t = jnp.swapaxes(networks.quantiles(target_params, transition.next_observation), 1, 2)
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1,
            jnp.broadcast_to(midpoints, quantiles_tm1.shape[:2]),
            transition.action,
            transition.reward,
            transition.discount,
            quantiles_t,
            quantiles_t,
            config.huber_delta,
        )
        return LossOutput(jnp.mean(per_item), {"q": jnp.mean(quantiles_tm1)})

    return loss


class Agent:
    """QR-DQN, as `agentkit.core.Agent`."""

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
        if config.num_quantiles < 1:
            raise ConfigError(f"num_quantiles must be at least 1, found {config.num_quantiles}.")
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
