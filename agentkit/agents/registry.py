"""The agents by name, for the command line and for configuration files."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from agentkit.core import Agent
from agentkit.errors import unknown_name

_MODULES = ("c51", "d4pg", "ddpg", "dqn", "iqn", "munchausen_dqn", "ppo", "qr_dqn", "rainbow", "sac", "td3")


def names() -> tuple[str, ...]:
    """The names of all agents."""
    return _MODULES


def module(name: str) -> ModuleType:
    """The agent's file, imported.

    Raises:
        UnknownNameError: there is no such agent; proposes the nearest name.
    """
    if name not in _MODULES:
        raise unknown_name("agent", name, _MODULES)
    return importlib.import_module(f"agentkit.agents.{name}")


def describe(name: str) -> str:
    """The first line of the agent's documentation: its name and its paper. Reads its file, and imports nothing.

    Raises:
        UnknownNameError: there is no such agent.
    """
    if name not in _MODULES:
        raise unknown_name("agent", name, _MODULES)
    source = (pathlib.Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


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
    return module(name).Agent(cls(**(overrides or {})))


def name_of(agent: Agent) -> str | None:
    """The registered name of an agent made of a registered file unchanged, else None."""
    file = type(agent).__module__.rpartition(".")[2]
    return file if type(agent).__module__ == f"agentkit.agents.{file}" and file in _MODULES else None
