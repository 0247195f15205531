"""DQN: deep Q-network (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Switches add double Q-learning (van Hasselt et al. 2016), duelling networks (Wang et al. 2016), n-step
returns (Sutton 1988; as in Hessel et al. 2018) and prioritised replay (Schaul et al. 2016).

Deviations from the paper:
  * Adam instead of RMSProp, and an optional clip of the gradients' global norm; the TD error goes
    through a Huber loss, whose gradient is the paper's clipped error.
  * Epsilon falls linearly over `epsilon_steps` of an actor's own steps.
  * Truncated episodes bootstrap.
  * New transitions get priority 1, not the largest priority so far.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, epsilon_greedy, epsilon_ladder, linear
from agentkit.adders import NStepAdder
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Prioritized, Replay, Table, Uniform
from agentkit.types import LossOutput, Nest, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DQN.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        duelling: separate value and advantage streams (Wang et al. 2016).
        double: select the bootstrap action with the online network (van Hasselt et al. 2016).
        n_step: rewards summed before bootstrapping.
        discount: gamma, in [0, 1].
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
        batch_size: transitions per update.
        target_update_period: updates between copies to the target network.
        updates_per_step: gradient updates per item inserted: one a step, and n_step - 1 more an episode.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        prioritized: prioritised replay by absolute TD error (Schaul et al. 2016).
        priority_exponent: alpha, how much prioritisation is used, where `prioritized`.
        importance_exponent: beta, how much of its bias is undone, where `prioritized`.
        epsilon_start: chance of a random action at first.
        epsilon_end: chance of a random action after `epsilon_steps`.
        epsilon_steps: steps of an actor over which epsilon falls linearly.
        epsilon_evaluation: chance of a random action in evaluation.
        epsilon_ladder: instead of falling, epsilon is fixed, from 0.4 for the first of the actors and environments
            that explore together down to 0.0007 for the last (Horgan et al. 2018, Ape-X).
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    duelling: bool = False
    double: bool = True
    n_step: int = 10
    discount: float = 0.99
    learning_rate: float = 1e-3
    max_grad_norm: float | None = 10.0
    huber_delta: float | None = 1.0
    batch_size: int = 128
    target_update_period: int = 200
    updates_per_step: float = 0.5
    updates_per_call: int = 1
    replay_size: int = 100_000
    min_replay_size: int = 1_000
    prioritized: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 5_000
    epsilon_evaluation: float = 0.0
    epsilon_ladder: bool = False


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
        num_actions: A.
    """

    init: Callable[[jax.Array], Any]
    q_values: Callable[[Any, Nest], jax.Array]
    num_actions: int


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Q-networks for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "DQN")
    head = nets.duelling_q_values if config.duelling else nets.q_values

    def q_values(observation: Nest) -> jax.Array:
        return head(observation, num_actions, config.hidden_sizes)

    network = nets.network(q_values, environment_spec.observations)
    return Networks(network.init, network.apply, num_actions)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy: as judged, on the ladder of Ape-X, or with an epsilon that falls."""
    if evaluation:
        return epsilon_greedy(networks.q_values, lambda _: config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder(networks.q_values)
    return epsilon_greedy(
        networks.q_values, linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps)
    )


def make_loss(networks: Networks, config: Config) -> Loss:
    """The TD loss on a batch of `Transition`s ``[B, ...]``."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        transition = batch.data
        q_tm1 = networks.q_values(params, transition.observation)  # [B, A]
        q_target_t = networks.q_values(target_params, transition.next_observation)  # [B, A]
        arguments = (q_tm1, transition.action, transition.reward, transition.discount, q_target_t)
        if config.double:
            q_selector_t = networks.q_values(params, transition.next_observation)
            errors = losses.double_q_learning_error(*arguments, q_selector_t)  # [B]
        else:
            errors = losses.q_learning_error(*arguments)
        per_item = losses.huber(errors, config.huber_delta)
        if not config.prioritized:
            return LossOutput(jnp.mean(per_item), {"q": jnp.mean(q_tm1)})
        weights = losses.importance_weights(
            batch.info.probability, batch.info.table_size, config.importance_exponent
        )
        return LossOutput(jnp.mean(weights * per_item), {"q": jnp.mean(q_tm1)}, jnp.abs(errors))

    return loss


class Agent:
    """DQN, as `agentkit.core.Agent`.

    To plug in a loss: ``Agent(make_loss=lambda networks, config: my_loss)``.
    """

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
        if not 0 <= self.config.discount <= 1:
            raise ConfigError(f"discount must be in [0, 1], found {self.config.discount}.")
        if self.config.epsilon_steps < 1:
            raise ConfigError(f"epsilon_steps must be at least 1, found {self.config.epsilon_steps}.")

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
        config = self.config
        return sgd(
            self._make_loss(networks, config),
            networks.init,
            adam(config.learning_rate, config.max_grad_norm),
            periodic(config.target_update_period),
        )

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        limiter = rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size)
        return [
            Table(
                TABLE,
                NStepAdder.layout(environment_spec),
                max_size=config.replay_size,
                sampler=Prioritized(config.priority_exponent) if config.prioritized else Uniform(),
                rate_limiter=limiter,
            )
        ]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`; new items get priority 1 (TD errors replace it once they are drawn)."""
        config = self.config
        writer = replay.writer(NStepAdder.history(config.n_step))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=config.n_step, discount=config.discount)
