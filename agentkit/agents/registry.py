"""The agents by name, for the command line and for configuration files."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from agentkit.core import Agent
from agentkit.errors import unknown_name


class About(NamedTuple):
    """What is said of an agent beside its file's first line.

    Attributes:
        actions: the action spaces that it takes; others it refuses. "joint" are several at once: multi-discrete ones,
            and tuples and dictionaries of all kinds.
        data: "off-policy", or "on-policy" for what learns from each step once; "offline" for what is made for data
            that stay as they are, and can go on off-policy.
        recurrent: whether its policy has a memory.
        distributed: whether it can be launched as a program of many processes.
    """

    actions: tuple[str, ...]
    data: str
    recurrent: bool = False
    distributed: bool = True


ALL_ACTIONS = ("discrete", "continuous", "joint")
_DISCRETE, _CONTINUOUS = About(("discrete",), "off-policy"), About(("continuous",), "off-policy")
_ON_POLICY = About(ALL_ACTIONS, "on-policy")
_OFFLINE_DISCRETE, _OFFLINE_CONTINUOUS = About(("discrete",), "offline"), About(("continuous",), "offline")
_AGENTS = {
    "a2c": _ON_POLICY,
    "bc": About(("discrete", "continuous"), "offline"),
    "c51": _DISCRETE,
    "cql": _OFFLINE_CONTINUOUS,
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
    "mpo": _CONTINUOUS,
    "munchausen_dqn": _DISCRETE,
    "npg": _ON_POLICY,
    "ppo": About(ALL_ACTIONS, "on-policy", recurrent=True),
    "qr_dqn": _DISCRETE,
    "r2d2": About(("discrete",), "off-policy", recurrent=True),
    "rainbow": _DISCRETE,
    "redq": _CONTINUOUS,
    "reinforce": _ON_POLICY,
    "sac": _CONTINUOUS,
    "td3": _CONTINUOUS,
    "td3_bc": _OFFLINE_CONTINUOUS,
    "trpo": _ON_POLICY,
}


def names() -> tuple[str, ...]:
    """The names of all agents."""
    return tuple(_AGENTS)


def about(name: str) -> About:
    """What an agent is for.

    Raises:
        UnknownNameError: there is no such agent.
    """
    _check(name)
    return _AGENTS[name]


def file(name: str) -> pathlib.Path:
    """Where the agent is written.

    Raises:
        UnknownNameError: there is no such agent.
    """
    _check(name)
    return pathlib.Path(__file__).parent / f"{name}.py"


def module(name: str) -> ModuleType:
    """The agent's file, imported.

    Raises:
        UnknownNameError: there is no such agent; proposes the nearest name.
    """
    _check(name)
    return importlib.import_module(f"agentkit.agents.{name}")


def describe(name: str) -> str:
    """The first line of the agent's documentation: its name and its paper. Reads its file, and imports nothing.

    Raises:
        UnknownNameError: there is no such agent.
    """
    return (ast.get_docstring(ast.parse(file(name).read_text(encoding="utf-8"))) or "").partition("\n")[0]


def config_class(name: str) -> type:
    """The agent's `Config`, a frozen dataclass whose docstring says what each field means."""
    return module(name).Config


def make(name: str, overrides: Mapping[str, Any] | None = None) -> Agent:
    """The agent of this name, with its default config but for `overrides`.

    Raises:
        UnknownNameError: no such agent, or no such config field.
    """
    cls = config_class(name)
    fields = {field.name for field in dataclasses.fields(cls)}
    for field in overrides or {}:
        if field not in fields:
            raise unknown_name(f"{name} setting", field, fields, f"See: agentkit show {name}")
    agent: Agent = module(name).make_agent(cls(**(overrides or {})))
    return agent


def name_of(agent: Any) -> str | None:
    """Returns the registered name of an agent that its file makes of its config, None of one with another part."""
    package, _, name = type(agent.config).__module__.rpartition(".")
    if package != "agentkit.agents" or name not in _AGENTS:
        return None
    made: Any = module(name).make_agent(agent.config)
    if type(agent) is not type(made):
        return None
    if not hasattr(made, "experience"):
        return name
    return name if agent.with_num_envs(1) == made.with_num_envs(1) else None  # Environments are not the file's choice.


def _check(name: str) -> None:
    if name not in _AGENTS:
        raise unknown_name("agent", name, _AGENTS)
