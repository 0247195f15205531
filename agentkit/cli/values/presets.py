"""Chooses and shows presets: settings that are known to work for an agent in an environment."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from typing import Any

from agentkit.cli.screen import command_line, say
from agentkit.cli.values.fields import value_text
from agentkit.errors import ConfigError


def choose_preset(arguments: argparse.Namespace, command: str) -> Any:
    """Returns the preset that ``--preset`` asks for; None for none.

    Raises:
        ConfigError: there is none of that name, or nothing says how many steps to take.
        UnknownNameError: there is no such agent, or the environment's name lacks its prefix.
    """
    from agentkit.envs import prefixes
    from agentkit.experiment.config import presets

    found = presets.choose(arguments.agent, arguments.env, arguments.preset or presets.AUTO)
    if arguments.steps is None and (found is None or found.num_steps is None):
        if ":" not in arguments.env:
            prefixes.check_name(arguments.env)  # Steps would not help.
        named = difflib.get_close_matches(arguments.env, _environments(arguments.agent), n=1, cutoff=0.8)
        where = f", as for {named[0]}" if named else f": agentkit show {arguments.agent} --env NAME"
        example = command_line(*command.split(), arguments.agent, "--env", arguments.env, "--steps", "100k")
        raise ConfigError(
            f"--steps is missing. Example: {example}. It may be left out where {arguments.agent} has a preset{where}"
        )
    return found


def tell_preset(preset: Any, agent: Any, plan: Any, arguments: argparse.Namespace) -> None:
    """Prints in one line the settings that a run has from a preset, and how to leave it out."""
    from agentkit.experiment.config import presets

    environment = arguments.env if arguments.preset in (None, presets.AUTO) else arguments.preset
    if line := presets.announcement(preset, agent.config, plan, environment, value_text):
        say(f"{line} --preset none for bare defaults.")


def describe_preset(agent: str, environment: str) -> str:
    """Returns the text of ``agentkit show AGENT --env NAME``: each setting of the preset beside its default."""
    from agentkit.agents import registry
    from agentkit.experiment.config import presets

    preset = presets.find(agent, environment)
    if preset is None:
        known = ", ".join(_environments(agent)) or "no environment"
        return f"\nNo preset of {agent} for {environment}. There are some for: {known}."
    defaults = {field.name: field.default for field in dataclasses.fields(registry.config_class(agent))}
    lines = ["", f"Preset for {environment} (used unless --preset none; --set wins):", ""]
    steps = preset.num_steps or 1
    for name, value in preset.settings_for(steps).items():
        shown = f"linear({value.start}, 0, STEPS)" if _falls(preset, name) else value_text(value)
        lines.append(f"    {name} = {shown}  (default: {value_text(defaults[name])})")
    if preset.num_envs is not None:
        lines.append(f"    --num-envs {preset.num_envs}")
    lines += [f"    --env-set {name}={value}" for name, value in preset.environment_settings.items()]
    lines += [f"    --wrapper {wrapper_text(wrapper)}" for wrapper in preset.wrappers]
    if len(lines) == 3:
        lines.append("    the defaults")
    if preset.num_steps is not None:
        lines.append(f"    --steps {preset.num_steps:_}")
    return "\n".join([*lines, f"    source: {preset.source}"])


def _environments(agent: str) -> list[str]:
    """Returns the environments that this agent has presets for, by name; a family's as its pattern."""
    from agentkit.experiment.config import presets

    return [name for row in presets.PRESETS if row.agent == agent for name in row.environments]


def _falls(preset: Any, name: str) -> bool:
    from agentkit.experiment.config.presets import Falling

    return isinstance(preset.settings[name], Falling)


def wrapper_text(wrapper: Any) -> str:
    """Returns a wrapper as ``--wrapper`` takes it."""
    from agentkit.wrappers.registry import name_of

    arguments = ", ".join(f"{name}={value!r}" for name, value in getattr(wrapper, "keywords", {}).items())
    return f"{name_of(getattr(wrapper, 'func', wrapper))}" + (f"({arguments})" if arguments else "")
