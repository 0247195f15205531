"""An agent with other replay tables than it makes by itself: other rate limits, sizes or samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from agentkit.core import Adder, Agent, BatchPlan
from agentkit.replay import Table
from agentkit.specs import EnvironmentSpec


def with_tables(agent: Agent, change: Callable[[Table], Table]) -> Agent:
    """An agent like `agent`, but for its replay tables.

    Args:
        agent: any.
        change: of each table, with its name kept, e.g.
            ``lambda table: dataclasses.replace(table, rate_limiter=Lockstep(64, 100))``.
    """
    return _WithTables(agent, change)


@final
class _WithTables:
    """All that it does not say itself is the other agent's."""

    def __init__(self, agent: Agent, change: Callable[[Table], Table]):
        self._agent = agent
        self._change = change
        self.config = agent.config

    def with_num_envs(self, num_envs: int) -> Agent:
        resize = getattr(self._agent, "with_num_envs", None)  # Optional, as the next one: see `core.Agent`.
        return self if resize is None else _WithTables(resize(num_envs), self._change)

    @property
    def make_batched_adder(self) -> Callable[..., Adder] | None:
        return getattr(self._agent, "make_batched_adder", None)

    @property
    def batch_plan(self) -> BatchPlan:
        return self._agent.batch_plan

    def make_networks(self, environment_spec: EnvironmentSpec) -> Any:
        return self._agent.make_networks(environment_spec)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Any:
        return self._agent.make_policy(networks, evaluation)

    def make_update(self, networks: Any) -> Any:
        return self._agent.make_update(networks)

    def make_tables(self, environment_spec: EnvironmentSpec) -> list[Table]:
        return [self._change(table) for table in self._agent.make_tables(environment_spec)]

    def make_adder(self, replay: Any, environment_spec: EnvironmentSpec) -> Adder:
        return self._agent.make_adder(replay, environment_spec)

    def __getattr__(self, name: str) -> Any:
        """The optional methods of `core.Agent`, where the other agent has them."""
        if name == "make_batched_adder":
            return self._agent.make_batched_adder  # type: ignore[attr-defined]
        if name == "with_num_envs":
            bind = self._agent.with_num_envs  # type: ignore[attr-defined]
            return lambda num_envs: _WithTables(bind(num_envs), self._change)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
