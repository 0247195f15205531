"""How agents that learn from segments keep their experience: adders fill them, a short queue hands each on once.

See `agentkit.adders.BatchedSegmentAdder` for what a segment is, and `on_policy` for what most learn from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.adders import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.agents import recurrent_policy
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Update
from agentkit.replay import Fifo, Queue, Replay, Table
from agentkit.types import Nest

TABLE = "segments"


@final
@dataclasses.dataclass(frozen=True)
class OnPolicyAgent:
    """An algorithm's functions with a queue of segments: a `core.Agent`.

    Its policy emits a `networks.Sampled`, or with networks of `recurrent_policy` an `Extras` of that file.

    Attributes:
        config: the settings that the functions are given.
        networks: ``(environment_spec, config) -> networks``.
        policy: ``(networks, config, evaluation) -> Policy``.
        update: ``(networks, config) -> Update``, of batches of `Step`s ``[B, T + 1, ...]``.
        num_envs: environments of an actor.
    """

    config: Any
    networks: Callable[[specs.EnvironmentSpec, Any], Any]
    policy: Callable[[Any, Any, bool], Policy]
    update: Callable[[Any, Any], Update]
    num_envs: int = 1

    def with_num_envs(self, num_envs: int) -> OnPolicyAgent:
        """See `core.Agent`."""
        return dataclasses.replace(self, num_envs=num_envs)

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        size = self.config.batch_size
        return BatchPlan(TABLE, self.num_envs if size is None else size)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Any:
        """See `core.Agent`."""
        return self.networks(environment_spec, self.config)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return self.policy(networks, self.config, evaluation)

    def make_update(self, networks: Any) -> Update:
        """See `core.Agent`; a ConfigError where the data of an update cannot be divided into the minibatches."""
        num_segments, length = self.batch_plan.batch_size, self.config.segment_length
        num_minibatches = getattr(self.config, "num_minibatches", 1)  # Not all have some.
        if num_segments * length % num_minibatches:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the rows of an update: {num_segments} "
                f"segments of {length}. Choose a divisor."
            )
        if isinstance(networks, recurrent_policy.Networks) and num_segments % num_minibatches:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the {num_segments} segments of an update, which a "
                f"policy with a memory learns from whole. Choose a divisor, more environments or another batch_size."
            )
        return self.update(networks, self.config)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`: a queue, as short as can be, so that what is learned from is new, or of ``queue_size``."""
        num_segments = self.batch_plan.batch_size
        least = num_segments if num_segments % self.num_envs == 0 else num_segments + self.num_envs - 1
        wanted = getattr(self.config, "queue_size", None)  # Not all have one.
        size = least if wanted is None else wanted
        if size < least:
            raise ConfigError(
                f"queue_size must be at least {least} for batches of {num_segments} segments from {self.num_envs} "
                f"environments, found {size}. Raise it, or leave it out."
            )
        layout = segment_layout(environment_spec, **self._segments(environment_spec))
        return [Table(TABLE, layout, size, Fifo(), rate_limiter=Queue(size), max_times_sampled=1)]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> SegmentAdder:
        """See `core.Agent`."""
        settings = self._segments(environment_spec)
        return SegmentAdder(replay.writer(1), environment_spec, tables=TABLE, **settings)

    def make_batched_adder(
        self, replay: Replay, environment_spec: specs.EnvironmentSpec, num_envs: int
    ) -> BatchedSegmentAdder:
        """See `core.Agent`."""
        settings = self._segments(environment_spec)
        return BatchedSegmentAdder(replay.writer(1), environment_spec, tables=TABLE, num_envs=num_envs, **settings)

    def _segments(self, environment_spec: specs.EnvironmentSpec) -> dict[str, Any]:
        return {"length": self.config.segment_length, "extras_spec": self._extras_spec(environment_spec)}

    def _extras_spec(self, environment_spec: specs.EnvironmentSpec) -> Nest:
        networks = self.make_networks(environment_spec)
        if isinstance(networks, recurrent_policy.Networks):
            return recurrent_policy.extras_spec(environment_spec, networks)
        return nets.sampled_spec(environment_spec.actions)


def agent_of_update(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], Any],
    make_policy: Callable[[Any, Any, bool], Policy],
    make_update: Callable[[Any, Any], Update],
) -> Callable[..., OnPolicyAgent]:
    """What an algorithm's file calls `Agent`.

    Args:
        config_class: of the settings.
        make_networks: ``(environment_spec, config) -> networks``.
        make_policy: ``(networks, config, evaluation) -> Policy``.
        make_update: ``(networks, config) -> Update``.

    Returns:
        ``(config=None, *, make_networks=..., make_update=...) -> OnPolicyAgent``: with default settings where none
        are given, and with other networks or another update than the file's where they are.
    """

    def make(
        config: Any = None, *, make_networks: Any = make_networks, make_update: Any = make_update
    ) -> OnPolicyAgent:
        config = config_class() if config is None else config
        return OnPolicyAgent(config, make_networks, make_policy, make_update)

    return make
