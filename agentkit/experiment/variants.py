"""Agents that differ from another one in a part: in a method, in their replay tables, in hindsight, in curiosity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from agentkit.adders import Hindsight, HindsightAdder
from agentkit.core import Adder, Agent, BatchPlan
from agentkit.errors import ConfigError, unknown_name
from agentkit.learning.curiosity import RndConfig, check_transitions, novelty_network, random_network_distillation
from agentkit.replay import Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest


def with_methods(agent: Agent, **changed: Callable[..., Any]) -> Agent:
    """An agent like `agent`, but for some methods of `core.Agent`.

    Args:
        agent: any.
        **changed: by the method's name, a function that takes `agent` as its first argument, e.g.
            ``make_adder=lambda agent, replay, spec: WithoutExtras(agent.make_adder(replay, spec))``.

    Raises:
        UnknownNameError: an agent has no method of that name.
    """
    for name in changed:
        if name not in _METHODS:
            raise unknown_name("agent method", name, _METHODS)
    return _Variant(agent, changed)


def with_tables(agent: Agent, change: Callable[[Table], Table]) -> Agent:
    """An agent like `agent`, but for its replay tables.

    Args:
        agent: any.
        change: of each table, with its name kept, e.g.
            ``lambda table: dataclasses.replace(table, rate_limiter=Lockstep(64, 100))``.
    """

    def make_tables(agent: Agent, environment_spec: EnvironmentSpec) -> list[Table]:
        return [change(table) for table in agent.make_tables(environment_spec)]

    return _Variant(agent, {"make_tables": make_tables})


def with_hindsight(agent: Agent, hindsight: Hindsight) -> Agent:
    """An agent like `agent`, which also learns from each step as if another goal had been asked for.

    An actor's steps become 1 + k items each, at the end of the episode. An off-policy agent's `updates_per_step`
    counts items, so 1 / (1 + k) of it is one update for a step.

    Args:
        agent: one that learns from `Transition`s in one table, with ``n_step=1``.
        hindsight: which other goals, and what they make of a step.

    Raises:
        ConfigError: the agent sums several rewards. When its tables are made: it learns from no transitions.
    """
    n_step = getattr(agent.config, "n_step", 1)
    if n_step != 1:
        raise ConfigError(
            f"Hindsight relabels single steps: expected an agent with n_step=1, found {n_step}. Set n_step=1."
        )

    def make_tables(agent: Agent, environment_spec: EnvironmentSpec) -> list[Table]:
        layout = HindsightAdder.layout(environment_spec)
        (table,) = agent.make_tables(environment_spec)
        check_transitions(table.layout.data)
        return [dataclasses.replace(table, layout=layout)]

    def make_adder(agent: Agent, replay: Any, environment_spec: EnvironmentSpec) -> Adder:
        return HindsightAdder(
            replay.writer(HindsightAdder.history()),
            environment_spec,
            tables=agent.batch_plan.table,
            discount=agent.config.discount,
            hindsight=hindsight,
        )

    return _Variant(agent, {"make_tables": make_tables, "make_adder": make_adder})


class _Curious(NamedTuple):
    """The agent's networks, and what curiosity needs beside them."""

    agent: Any
    novelty: Any
    observation_spec: Nest


def with_rnd(agent: Agent, config: RndConfig | None = None) -> Agent:
    """An agent like `agent`, whose learner adds an intrinsic reward for what is new (RND, Burda et al. 2018).

    See `agentkit.learning.random_network_distillation`. Acting, replay and what is published stay the agent's.

    Args:
        agent: one that learns from `Transition`s, on- or offline.
        config: of the intrinsic reward; None for the defaults.

    Raises:
        ConfigError: when its networks are made: it learns from other data than transitions.
    """
    settings = RndConfig() if config is None else config

    def make_networks(agent: Agent, environment_spec: EnvironmentSpec) -> _Curious:
        for table in agent.make_tables(environment_spec):
            if table.name == agent.batch_plan.table:
                check_transitions(table.layout.data)
        networks = agent.make_networks(environment_spec)
        spec = environment_spec.observations
        return _Curious(networks, novelty_network(spec, settings), spec)

    def make_policy(agent: Agent, networks: _Curious, evaluation: bool = False) -> Any:
        return agent.make_policy(networks.agent, evaluation)

    def make_update(agent: Agent, networks: _Curious) -> Any:
        own = agent.make_update(networks.agent)
        return random_network_distillation(own, networks.novelty, networks.observation_spec, settings)

    changed: dict[str, Callable[..., Any]] = {
        "make_networks": make_networks,
        "make_policy": make_policy,
        "make_update": make_update,
    }
    return _Variant(agent, changed)


_METHODS = ("make_networks", "make_policy", "make_update", "make_tables", "make_adder")


@final
class _Variant:
    """An agent some of whose methods are others, which take it as their first argument; the rest is its own."""

    def __init__(self, agent: Agent, changed: Mapping[str, Callable[..., Any]]):
        self._agent = agent
        self._changed = changed
        self.config = agent.config

    def _call(self, name: str, *arguments: Any) -> Any:
        if name in self._changed:
            return self._changed[name](self._agent, *arguments)
        return getattr(self._agent, name)(*arguments)

    def with_num_envs(self, num_envs: int) -> Agent:
        resize = getattr(self._agent, "with_num_envs", None)  # Optional, as the next one: see `core.Agent`.
        return self if resize is None else _Variant(resize(num_envs), self._changed)

    @property
    def make_batched_adder(self) -> Callable[..., Adder] | None:
        return None if "make_adder" in self._changed else getattr(self._agent, "make_batched_adder", None)

    @property
    def batch_plan(self) -> BatchPlan:
        return self._agent.batch_plan

    def make_networks(self, environment_spec: EnvironmentSpec) -> Any:
        return self._call("make_networks", environment_spec)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Any:
        return self._call("make_policy", networks, evaluation)

    def make_update(self, networks: Any) -> Any:
        return self._call("make_update", networks)

    def make_tables(self, environment_spec: EnvironmentSpec) -> list[Table]:
        return self._call("make_tables", environment_spec)

    def make_adder(self, replay: Any, environment_spec: EnvironmentSpec) -> Adder:
        return self._call("make_adder", replay, environment_spec)
