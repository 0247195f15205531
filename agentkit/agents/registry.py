"""Finds agents by name, for the command line and for configuration files."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from agentkit.errors import unknown_name

if TYPE_CHECKING:
    from agentkit.agents.common.agent import Agent


class About(NamedTuple):
    """Describes an agent beyond its file's first line.

    Attributes:
        actions: the action spaces that it takes; others it refuses. "joint" are several at once: multi-discrete ones,
            and tuples and dictionaries of all kinds; "team" one of each agent of a team (`networks.team`): a
            discrete one, or with "continuous team" also continuous ones.
        data: "off-policy", or "on-policy" for what learns from each step once; "offline" for what is made for data
            that stay as they are, and can go on off-policy.
        recurrent: whether its policy has a memory, or can be given one.
    """

    actions: tuple[str, ...]
    data: str
    recurrent: bool = False


ALL_ACTIONS = ("discrete", "continuous", "joint")
_DISCRETE, _CONTINUOUS = About(("discrete",), "off-policy"), About(("continuous",), "off-policy")
_ON_POLICY = About(ALL_ACTIONS, "on-policy")
_OFFLINE_DISCRETE, _OFFLINE_CONTINUOUS = About(("discrete",), "offline"), About(("continuous",), "offline")
_AGENTS = {
    "a2c": _ON_POLICY,
    "bc": About(("discrete", "continuous"), "offline"),
    "c51": _DISCRETE,
    "cql": _OFFLINE_CONTINUOUS,
    "crossq": _CONTINUOUS,
    "crr": _OFFLINE_CONTINUOUS,
    "d4pg": _CONTINUOUS,
    "ddpg": _CONTINUOUS,
    "discrete_bcq": _OFFLINE_DISCRETE,
    "discrete_cql": _OFFLINE_DISCRETE,
    "discrete_sac": _DISCRETE,
    "dqn": _DISCRETE,
    "droq": _CONTINUOUS,
    "gumbel_muzero": _DISCRETE,
    "impala": About(ALL_ACTIONS, "on-policy", recurrent=True),
    "iql": _OFFLINE_CONTINUOUS,
    "iqn": _DISCRETE,
    "maddpg": About(("team", "continuous team"), "off-policy"),
    "mappo": About(("team",), "on-policy"),
    "mpo": _CONTINUOUS,
    "munchausen_dqn": _DISCRETE,
    "npg": _ON_POLICY,
    "pqn": About(("discrete",), "on-policy"),
    "ppo": About(ALL_ACTIONS, "on-policy", recurrent=True),
    "qmix": About(("team",), "off-policy"),
    "qr_dqn": _DISCRETE,
    "r2d2": About(("discrete",), "off-policy", recurrent=True),
    "rainbow": _DISCRETE,
    "recurrent_sac": About(("continuous",), "off-policy", recurrent=True),
    "redq": _CONTINUOUS,
    "reinforce": _ON_POLICY,
    "sac": _CONTINUOUS,
    "td3": _CONTINUOUS,
    "td3_bc": _OFFLINE_CONTINUOUS,
    "tqc": _CONTINUOUS,
    "trpo": _ON_POLICY,
}


def names() -> tuple[str, ...]:
    """Returns the names of all agents."""
    return tuple(_AGENTS)


def about(name: str) -> About:
    """Returns an agent's `About`: the actions it takes, and the data it learns from.

    Raises:
        UnknownNameError: there is no such agent.
    """
    _check(name)
    return _AGENTS[name]


def file(name: str) -> pathlib.Path:
    """Returns the path of the agent's file.

    Raises:
        UnknownNameError: there is no such agent.
    """
    _check(name)
    return pathlib.Path(__file__).parent / f"{name}.py"


def module(name: str) -> ModuleType:
    """Imports the agent's file and returns it.

    Raises:
        UnknownNameError: there is no such agent; proposes the nearest name.
    """
    _check(name)
    return importlib.import_module(f"agentkit.agents.{name}")


def describe(name: str) -> str:
    """Returns the first line of the agent's documentation, its name and its paper; imports nothing.

    Raises:
        UnknownNameError: there is no such agent.
    """
    return (ast.get_docstring(ast.parse(file(name).read_text(encoding="utf-8"))) or "").partition("\n")[0]


def config_class(name: str) -> type:
    """Returns the agent's `Config`, a frozen dataclass whose docstring says what each field means."""
    cls: type = module(name).Config
    return cls


def make(name: str, overrides: Mapping[str, Any] | None = None, torso: Any = None) -> Agent[Any]:
    """Makes the agent of this name, with its default config but for `overrides`.

    Args:
        name: of the agent.
        overrides: fields of its `Config`.
        torso: as its `make_agent` takes it; None for the agent's own.

    Raises:
        UnknownNameError: no such agent, no such config field, or no torso of that name.
        ConfigError: the torso cannot be called.
    """
    cls = config_class(name)
    fields = {field.name for field in dataclasses.fields(cls)}
    for field in overrides or {}:
        if field not in fields:
            raise unknown_name(f"{name} setting", field, fields, f"See: agentkit show {name}")
    agent: Agent[Any] = module(name).make_agent(cls(**(overrides or {})), torso=torso)
    return agent


def name_of(agent: Agent[Any]) -> str | None:
    """Returns the name of the registered agent whose settings an agent has; None if they are no registered agent's.

    The agent's parts may still be others: see `agentkit.experiment.config.identity`.
    """
    cls = type(agent.config)
    package, _, name = cls.__module__.rpartition(".")
    return name if package == "agentkit.agents" and name in _AGENTS and cls is config_class(name) else None


def _check(name: str) -> None:
    if name not in _AGENTS:
        own = "An agent of your own is trained from Python: docs/compose_an_agent.md." if ":" in name else ""
        raise unknown_name("agent", name, _AGENTS, own)
