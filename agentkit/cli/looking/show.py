"""Runs ``agentkit list`` and ``agentkit show``."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from agentkit.cli.screen import hang, rewrap, say, width
from agentkit.cli.values.fields import field_types, type_name, value_text
from agentkit.cli.values.presets import describe_preset
from agentkit.errors import ConfigError

_INDENT = " " * 8


def list_all(arguments: argparse.Namespace) -> int:
    """Prints the agents, and how environments are named."""
    del arguments  # It takes none.
    from agentkit import envs
    from agentkit.envs.prefixes import (
        IN_JAX_OF_SEVERAL_AGENTS,
        OF_SEVERAL_AGENTS,
        OWN_OF_SEVERAL_AGENTS,
        SIMULATORS,
    )

    columns = width()
    print('Agents (agentkit show NAME; "all" takes every kind of actions):')
    print("\n".join(f"  {line}" for line in table_of_agents(None if columns is None else columns - 2)))
    print("\nEnvironments (agentkit train AGENT --env NAME):")
    names = {name: name + SIMULATORS.get(name.removesuffix(":"), "") for name in envs.available()}
    _print_lines({example: _first_line(name) for name, example in names.items()}, columns)
    print("\nEnvironments of several agents (agentkit train AGENT --policies shared ...):")
    several = [f"agentkit:{name}" for name in OWN_OF_SEVERAL_AGENTS]
    several += [f"jax:{name}" for name in IN_JAX_OF_SEVERAL_AGENTS]
    several += [f"{prefix}:{example}" for prefix, example in OF_SEVERAL_AGENTS.items()]
    _print_lines({name: _first_line(name) for name in several}, columns)
    say("\nBegin with dqn for discrete actions, sac for continuous ones, or ppo for any where steps are cheap:")
    say("  agentkit train dqn --env gymnasium:CartPole-v1")
    return 0


def table_of_agents(columns: int | None = None) -> list[str]:
    """Returns a line for each agent, under a line of titles: what it takes, its file and its paper.

    Args:
        columns: that there are; the table leaves out what matters less where it does not fit. None has all.
    """
    from agentkit.agents import registry

    titles = ["agent", "actions", "data", "recurrent", "file", "paper"]
    rows: list[dict[str, str]] = [dict(zip(titles, titles, strict=True))]
    for name in registry.names():
        about = registry.about(name)
        recurrent = "yes" if about.recurrent else "no"
        paper = re.search(r"\(([^(),]* \d{4})", registry.describe(name))
        cited = "" if paper is None else paper[1]
        actions = "all" if about.actions == registry.ALL_ACTIONS else ", ".join(about.actions)
        cells = (name, actions, about.data, recurrent, registry.file(name).name, cited)
        rows.append(dict(zip(titles, cells, strict=True)))
    widths = {title: max(len(row[title]) for row in rows) for title in titles}
    for title in ("file", "recurrent"):
        if columns is not None and sum(widths.values()) + 2 * (len(widths) - 1) > columns:
            del widths[title]
    return ["  ".join(row[title].ljust(size) for title, size in widths.items()).rstrip() for row in rows]


def show(arguments: argparse.Namespace) -> int:
    """Prints an agent's source and its config; with an environment also its preset and network.

    Raises:
        AgentkitError: a run of the agent in the environment would be refused, and with these words.
    """
    from agentkit.agents import registry

    config_class = registry.config_class(arguments.agent)
    of_network = [name for name in ("env_set", "wrapper", "set", "torso", "view", "preset") if getattr(arguments, name)]
    if of_network and arguments.env is None:
        raise ConfigError(
            f"--{of_network[0].replace('_', '-')} changes the network in an environment; say which one, with --env."
        )
    print(rewrap(describe_agent(config_class), width()))
    if arguments.env is not None:
        from agentkit.cli.looking.show_network import describe_network

        print(describe_preset(arguments.agent, arguments.env), flush=True)
        print(describe_network(arguments, width()))
    return 0


def describe_agent(config_class: type) -> str:
    """Returns the text of ``agentkit show``: the agent file's docstring (its source), then its config's fields.

    Those that the config adds to what it extends come first.

    Raises:
        ValueError: if a field is not explained in the config's docstring.
    """
    module = sys.modules[config_class.__module__]
    lines = [inspect.getdoc(module) or "", "", "Config (--set NAME=VALUE):", ""]
    for name, kind, default, meaning in settings_of(config_class):
        lines.append(f"    {name}: {kind} = {default}")
        lines += textwrap.wrap(meaning, 100, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


class Setting(NamedTuple):
    """Describes a field of an agent's config, as text."""

    name: str
    kind: str
    default: str
    meaning: str


def settings_of(config_class: type) -> list[Setting]:
    """Returns the fields of a config; those that it adds to what it extends come first.

    Raises:
        ValueError: if a field is not explained in the config's docstring.
    """
    meanings: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):  # A class's own words come after those of what it extends.
        meanings |= parse_attributes(cls.__doc__ or "")
    types = field_types(config_class)
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    own = [name for name in inspect.get_annotations(config_class) if name in fields]
    found = []
    for name in [*own, *(name for name in fields if name not in own)]:
        if name not in meanings:
            raise ValueError(f"{config_class.__qualname__}.{name} is not in the docstring's Attributes.")
        found.append(Setting(name, type_name(types[name]), _default(fields[name]), meanings[name]))
    return found


def parse_attributes(docstring: str) -> dict[str, str]:
    """Returns the names and meanings in a Google-style docstring's ``Attributes:`` section.

    >>> parse_attributes('''Settings.
    ...
    ... Attributes:
    ...     width: how wide
    ...         it is.
    ...     depth: how deep.
    ...
    ... Notes: none.
    ... ''')
    {'width': 'how wide it is.', 'depth': 'how deep.'}
    """
    lines = inspect.cleandoc(docstring).splitlines()
    if "Attributes:" not in lines:
        return {}
    meanings: dict[str, str] = {}
    name, indent = "", None
    for line in lines[lines.index("Attributes:") + 1 :]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        indent = depth if indent is None else indent
        if depth == indent:
            name, _, text = line.strip().partition(":")
            name = name.split(" ")[0]  # "width (int)" is allowed, too
            meanings[name] = text.strip()
        else:
            meanings[name] = f"{meanings[name]} {line.strip()}".strip()
    return meanings


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return value_text(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "(required)"


def _first_line(environment: str) -> str:
    """Returns the first sentence of an environment's file, read without importing its simulator."""
    from agentkit.envs.prefixes import module_of

    module = module_of(environment)
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        return "registered by your own code"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    without_source = re.sub(r" \([^()]* \d{4}\.\d{4,5}\)", "", (docstring or "").partition("\n")[0])
    return re.split(r"(?<! al)\. ", without_source)[0].removesuffix(".") + "."


def _print_lines(meanings: dict[str, str], columns: int | None) -> None:
    longest = max(map(len, meanings))
    for name, meaning in meanings.items():
        print(hang(f"  {name:{longest}}  {meaning}", columns, longest + 4))
