"""Munchausen-DQN: DQN that is rewarded for its own confidence (Vieillard et al. 2020, "Munchausen RL", 2007.14430).

The policy softmax(q / temperature) is bootstrapped from softly, with its entropy, and the scaled log-probability of
the action taken is added to the reward: learning then keeps close to the policy before, without computing so.

Deviations from the paper:
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari; the loss may be squared instead of Huber's.

There is no n-step return: the bonus is for one action, whose next observation is one step away.
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
    """Settings of Munchausen-DQN.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        temperature: tau, > 0: how soft the policy is that is bootstrapped from.
        bonus_scale: alpha, how much of the log-probability is added to the reward, in [0, 1]; 0 for soft DQN.
        least_bonus: l_0, where temperature * log-probability is cut off, at most 0.
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size.
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
        batch_size: transitions per update.
        target_update_period: updates between copies to the target network.
        updates_per_step: gradient updates per step.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        epsilon_start: chance of a random action at first.
        epsilon_end: chance of a random action after `epsilon_steps`.
        epsilon_steps: steps of an actor over which epsilon falls linearly.
        epsilon_evaluation: chance of a random action in evaluation.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    temperature: float = 0.03
    bonus_scale: float = 0.9
    least_bonus: float = -1.0
    discount: float = 0.99
    learning_rate: float = 5e-4
    huber_delta: float | None = 1.0
    batch_size: int = 128
    target_update_period: int = 500
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
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
    """

    init: Callable[[jax.Array], Any]
    q_values: Callable[[Any, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Q-networks for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Munchausen-DQN")

    def q_values(observation: Nest) -> jax.Array:
        return nets.q_values(observation, num_actions, config.hidden_sizes)

    return Networks(*nets.network(q_values, environment_spec.observations))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy, as in the paper's experiments; its state is the number of steps taken, int32 ``[]``."""
    if evaluation:
        return epsilon_greedy(networks.q_values, lambda _: config.epsilon_evaluation)
    return epsilon_greedy(
        networks.q_values, linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps)
    )


def make_loss(networks: Networks, config: Config) -> Loss:
    """The paper's eq. 2 on a batch of one-step `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        transition = batch.data
        q_tm1 = networks.q_values(params, transition.observation)  # [B, A]
        errors = losses.munchausen_error(
            q_tm1,
            transition.action,
            transition.reward,
            transition.discount,
            networks.q_values(target_params, transition.observation),
            networks.q_values(target_params, transition.next_observation),
            temperature=config.temperature,
            scale=config.bonus_scale,
            least_log=config.least_bonus,
        )
        return LossOutput(jnp.mean(losses.huber(errors, config.huber_delta)), {"q": jnp.mean(q_tm1)})

    return loss


class Agent:
    """Munchausen-DQN, as `agentkit.core.Agent`."""

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
        if not config.temperature > 0:
            raise ConfigError(f"temperature must be > 0, found {config.temperature}.")
        if not 0 <= config.bonus_scale <= 1:
            raise ConfigError(f"bonus_scale must be in [0, 1], found {config.bonus_scale}.")
        if not config.least_bonus <= 0:
            raise ConfigError(f"least_bonus must be at most 0, found {config.least_bonus}.")

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
        writer = replay.writer(NStepAdder.history(1))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=1, discount=self.config.discount)
