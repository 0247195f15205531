"""What agents that learn off-policy from sequences share: settings, acting with a memory, how experience is kept.

Data go round like this: an actor's rows (its steps, and the final observation of each episode) become overlapping
sequences, each row with the memory that the policy had when it chose; the learner draws sequences as often as the
settings say, unrolls its networks over them from the first row's memory, and may write back priorities.

Sequences run on from one episode into the next (`SequenceAdder`'s "continue"), so nothing is padded, and short
episodes fill whole sequences; networks begin anew where a row has ``start_of_episode``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.adders import SequenceAdder
from agentkit.agents.checks import check_counts, check_fractions
from agentkit.agents.off_policy import ValueConfig, explore_values, fit_values
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Update, rate_limit
from agentkit.replay import Prioritized, Replay, Table, Uniform
from agentkit.types import Nest

TABLE = "sequences"


@dataclasses.dataclass(frozen=True)
class SequenceConfig(ValueConfig):
    """Settings of those that learn the values of discrete actions from sequences, beside those of `ValueConfig`.

    There "transitions" are sequences here, but that `updates_per_step` are for each row of an actor.

    Attributes:
        core_size: units of the LSTM.
        sequence_length: rows that are unrolled, T; one more is stored, to bootstrap from.
        sequence_period: rows from the start of one sequence to the next; at most `sequence_length` - `burn_in`, so
            that each row is learned from.
        burn_in: first rows of a sequence that only set the state; see `networks.unroll_after_burn_in`.
        priority_max_weight: eta, how much of a sequence's priority is its largest error; the rest is their mean.
    """

    hidden_sizes: tuple[int, ...] = (64,)
    n_step: int = 5
    batch_size: int = 32
    updates_per_step: float = 0.125
    replay_size: int = 10_000
    min_replay_size: int = 50
    prioritized: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    core_size: int = 64
    sequence_length: int = 40
    sequence_period: int = 20
    burn_in: int = 10
    priority_max_weight: float = 0.9

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_fractions(self, "priority_max_weight")
        check_counts(self, "n_step", "core_size", "sequence_length", "sequence_period")
        if not 0 <= self.burn_in <= self.sequence_length - self.sequence_period:
            raise ConfigError(
                f"Expected 0 <= burn_in <= sequence_length - sequence_period, or some rows are never learned from; "
                f"found burn_in={self.burn_in}, sequence_length={self.sequence_length}, "
                f"sequence_period={self.sequence_period}."
            )


class Memory(NamedTuple):
    """The state of a policy that remembers and explores.

    Attributes:
        core: of the network; that of an episode's start at each reset.
        exploration: of the policy that chooses by values: an epsilon, or the number of steps taken.
    """

    core: Nest
    exploration: Nest


def explore_values_with_memory(network: nets.RecurrentNetwork, config: SequenceConfig, evaluation: bool) -> Policy:
    """`explore_values` by the values of a recurrent network; emits the memory that it had before the observation.

    Args:
        network: its outputs are action values ``[B, A]``.
        config: has the epsilons.
        evaluation: whether the policy is to be judged; it then emits nothing.
    """
    choose = explore_values(lambda _, q: q, config, evaluation)  # Of which the observations are the values.

    def init(key: jax.Array) -> Memory:
        return Memory(network.initial_state, choose.init(key))

    def act(params: Any, key: jax.Array, observation: Nest, state: Memory) -> tuple[Nest, Memory, Nest]:
        q, core = nets.step_one(network, params, observation, state.core)
        action, exploration, _ = choose.act((), key, q, state.exploration)
        return action, Memory(core, exploration), () if evaluation else state.core

    def reset(state: Memory) -> Memory:
        return state._replace(core=network.initial_state)

    def spread(state: Memory, index: Any, count: int) -> Memory:
        return state._replace(exploration=choose.spread(state.exploration, index, count))

    return Policy(act, init, reset, spread)


@final
@dataclasses.dataclass(frozen=True)
class SequenceAgent:
    """An algorithm's functions with one table of sequences: a `core.Agent`.

    Attributes:
        config: the settings that the functions are given.
        networks: ``(environment_spec, config) -> networks``.
        policy: ``(networks, config, evaluation) -> Policy``, which emits what `extras_spec` says.
        update: ``(networks, config) -> Update``, of batches of `Step`s ``[B, T + 1, ...]``.
        extras_spec: ``networks -> specs`` of what the policy emits; by default of a `RecurrentNetwork`'s state.
    """

    config: Any
    networks: Callable[[specs.EnvironmentSpec, Any], Any]
    policy: Callable[[Any, Any, bool], Policy]
    update: Callable[[Any, Any], Update]
    extras_spec: Callable[[Any], Nest] = nets.state_spec

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        return BatchPlan(TABLE, self.config.batch_size, self.config.updates_per_call)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Any:
        """See `core.Agent`."""
        return self.networks(environment_spec, self.config)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return self.policy(networks, self.config, evaluation)

    def make_update(self, networks: Any) -> Update:
        """See `core.Agent`."""
        return self.update(networks, self.config)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        updates_per_item = config.updates_per_step * config.sequence_period
        return [
            Table(
                TABLE,
                SequenceAdder.layout(environment_spec, config.sequence_length + 1, self._extras_spec(environment_spec)),
                max_size=config.replay_size,
                sampler=Prioritized(config.priority_exponent) if config.prioritized else Uniform(),
                rate_limiter=rate_limit(self.batch_plan, updates_per_item, config.min_replay_size),
            )
        ]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> SequenceAdder:
        """See `core.Agent`; new items get priority 1 (what the update says of them replaces it once they are drawn)."""
        length = self.config.sequence_length + 1
        return SequenceAdder(
            replay.writer(SequenceAdder.history(length)),
            environment_spec,
            tables=TABLE,
            length=length,
            period=self.config.sequence_period,
            end_of_episode="continue",
            extras_spec=self._extras_spec(environment_spec),
        )

    def _extras_spec(self, environment_spec: specs.EnvironmentSpec) -> Nest:
        return self.extras_spec(self.make_networks(environment_spec))


def agent_of_loss(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], Any],
    make_policy: Callable[[Any, Any, bool], Policy],
    make_loss: Callable[[Any, Any], Loss],
    extras_spec: Callable[[Any], Nest] = nets.state_spec,
) -> Callable[..., SequenceAgent]:
    """What an algorithm's file calls `Agent`; as `off_policy.agent_of_loss`, of sequences.

    `extras_spec` is that of `SequenceAgent`.

    Returns: ``(config=None, *, make_networks=..., make_loss=...) -> SequenceAgent``.
    """

    def make(config: Any = None, *, make_networks: Any = make_networks, make_loss: Any = make_loss) -> SequenceAgent:
        update = functools.partial(fit_values, make_loss)
        config = config_class() if config is None else config
        return SequenceAgent(config, make_networks, make_policy, update, extras_spec)

    return make
