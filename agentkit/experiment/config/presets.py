"""Finds settings that are known to work for an agent in an environment; `agentkit.presets` in short.

The command line and `agentkit.train` use them. `ExperimentConfig` and `make_agent`, called by hand, do not.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

from agentkit.agents import registry
from agentkit.errors import unknown_name
from agentkit.experiment.config.preset_table import PRESETS, Falling, Preset
from agentkit.wrappers.registry import name_of

__all__ = ["PRESETS", "Falling", "Preset", "announcement", "choose", "find", "summary"]

AUTO, NONE = "auto", "none"


def find(agent: str, environment: Any) -> Preset | None:
    """Returns the preset of an agent in an environment: the row with the very name, else the first that matches.

    Args:
        agent: a registered name.
        environment: a name such as ``gymnasium:Hopper-v5``; of an instance that gymnasium made, its own name counts.

    Returns:
        The preset; None if the table has none.

    Raises:
        UnknownNameError: there is no such agent; proposes the nearest name.
    """
    registry.about(agent)
    name = _name_of(environment).removeprefix("agent_ids:")  # They change what is seen and not how to learn.
    rows = [preset for preset in PRESETS if preset.agent == agent]
    exact = [preset for preset in rows if name in preset.environments]
    family = [preset for preset in rows if any(fnmatch.fnmatchcase(name, pattern) for pattern in preset.environments)]
    return next(iter(exact + family), None)


def choose(agent: str, environment: Any, wanted: str | None = AUTO) -> Preset | None:
    """Returns the preset that a user asks for.

    Args:
        agent: a registered name.
        environment: see `find`.
        wanted: "auto" for that of the environment, "none" (or None) for none, or another environment's name for its.

    Raises:
        UnknownNameError: there is none for the environment that `wanted` names; proposes the nearest one.
    """
    if wanted is None or wanted == NONE:
        return None
    if wanted == AUTO:
        return find(agent, environment)
    found = find(agent, wanted)
    if found is None:
        known = [name for row in PRESETS if row.agent == agent for name in row.environments]
        known = [name for name in known if not name.startswith("envpool:")]  # Gymnasium's once more.
        raise unknown_name(f"preset of {agent}", wanted, [AUTO, NONE, *known])
    return found


def summary(preset: Preset, num_steps: int, text: Callable[[Any], str] = str) -> str:
    """Returns the preset in one line: all that it sets, and its source.

    Args:
        preset: any.
        num_steps: of the run.
        text: writes a setting's value.
    """
    words = [f"{name}={text(value)}" for name, value in preset.settings_for(num_steps).items()]
    words += [] if preset.num_envs is None else [f"num_envs={preset.num_envs}"]
    words += [f"{name}={value}" for name, value in preset.environment_settings.items()]
    words += [f"wrapper {name_of(getattr(wrapper, 'func', wrapper))}" for wrapper in preset.wrappers]
    return f"{', '.join(words) or 'the defaults'} ({preset.source})"


def announcement(
    preset: Preset | None, config: Any, plan: Any, environment: object, text: Callable[[Any], str] = str
) -> str:
    """Returns the line that a run begins with: the preset, and which of its settings are the user's own instead.

    It is empty where the preset is None or has nothing but the defaults.

    Args:
        preset: that was chosen.
        config: the agent's settings, as they are.
        plan: the experiment, an `ExperimentConfig` or a `MultiAgentConfig`.
        environment: whose preset it is.
        text: writes a setting's value.
    """
    if preset is None or not (preset.settings or preset.num_envs or preset.environment_settings or preset.wrappers):
        return ""
    values = preset.settings_for(plan.num_steps).items()
    own = [name for name, value in values if getattr(config, name) != value]
    own += ["num_envs"] if preset.num_envs not in (None, plan.num_envs) else []
    own += [name for name, value in preset.environment_settings.items() if plan.environment_settings.get(name) != value]
    # Others may be behind them, which multiply rewards as the run in --init-from did. Several agents have none.
    wrappers = tuple(getattr(plan, "wrappers", ()))
    if preset.wrappers and wrappers[: len(preset.wrappers)] != preset.wrappers:
        own.append("wrappers")
    yours = f" Yours instead: {', '.join(own)}." if own else ""
    return f"Preset for {_name_of(environment)}: {summary(preset, plan.num_steps, text)}.{yours}"


def _name_of(environment: Any) -> str:
    if isinstance(environment, str):
        return environment
    name = getattr(getattr(environment, "spec", None), "id", None)  # Of what gymnasium.make returned.
    return f"gymnasium:{name}" if isinstance(name, str) else ""
