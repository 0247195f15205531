"""What agents that learn off-policy from sequences share: how experience is kept.

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
from typing import Any, final

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.adders import SequenceAdder
from agentkit.agents.off_policy import fit_loss, fit_values
from agentkit.core import BatchPlan
from agentkit.learning import Loss, Update, rate_limit
from agentkit.replay import Prioritized, Replay, Table, Uniform
from agentkit.types import Nest

TABLE = "sequences"


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
        update = functools.partial(fit_loss, fit_values, make_loss)
        config = config_class() if config is None else config
        return SequenceAgent(config, make_networks, make_policy, update, extras_spec)

    return make
