"""Numeric settings in which runs of one compiled program may differ: numbers that it is given, and not made for."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.agents.common.agent import Agent
from agentkit.errors import ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.population import Settings

_OWN = ("seed", "agent_config", "agent_parts")
"""Of what `ExperimentConfig.describe` says, in what runs may differ; the parts of agents are compared themselves."""


def find_settings(experiments: Sequence[ExperimentConfig]) -> dict[str, np.ndarray]:
    """Returns the settings in which agents differ, a number for each experiment: float32 or int32 ``[S]``.

    Raises:
        ConfigError: they differ in something else, or in a setting that is no number.
    """
    first, agent = experiments[0], experiments[0].agent
    described = first.describe()
    for other in experiments:
        theirs = other.describe()
        if differs := [name for name in described if name not in _OWN and described[name] != theirs[name]]:
            raise _refused(differs[0], f"{described[differs[0]]!r:.60} and {theirs[differs[0]]!r:.60}")
        if type(other.agent.config) is not type(agent.config) or with_config(other.agent, agent.config) != agent:
            raise _refused("the agent's parts", "functions or objects that are no settings")
    found = {}
    for field in dataclasses.fields(agent.config):
        values = [getattr(experiment.agent.config, field.name) for experiment in experiments]
        if all(repr(value) == repr(values[0]) for value in values):
            continue
        if not all(type(value) in (int, float) for value in values):
            raise _refused(field.name, f"{values[0]!r:.60} and others, not all of which are numbers")
        is_whole = all(type(value) is int for value in values) and not isinstance(field.default, float)
        found[field.name] = np.array(values, np.int32 if is_whole else np.float32)
    return found


def with_settings(agent: Agent[Any], settings: Mapping[str, Any]) -> Agent[Any]:
    """Returns the agent with other values of some settings, which may be traced; their ranges are not checked."""
    changed: Agent[Any] = with_config(agent, changed_config(agent.config, settings))
    return changed


def changed_config(config: Any, settings: Mapping[str, Any]) -> Any:
    """Returns other settings, whose ranges are not checked."""
    changed = copy.copy(config)
    for name, value in settings.items():
        object.__setattr__(changed, name, value)
    return changed


def with_config(value: Any, config: Any, old: Any = None) -> Any:
    """Returns an agent, or a part of it, whose functions hold other settings.

    Args:
        value: the agent.
        config: the new settings.
        old: the agent's; None asks it.
    """
    old = value.config if old is None else old
    if value is old or (type(value) is type(old) and value == old):
        return config
    if isinstance(value, functools.partial):
        arguments = [with_config(part, config, old) for part in value.args]
        return functools.partial(value.func, *arguments, **with_config(value.keywords, config, old))
    if isinstance(value, dict):
        return {name: with_config(part, config, old) for name, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, with_config(getattr(value, field.name), config, old))
        return changed
    return value


def check_traced(settings: Settings, trace: Callable[[Settings], Any]) -> None:
    """Refuses a setting that shapes programs, or that Python decides by.

    Args:
        settings: of all runs, ``[S]``.
        trace: makes and traces the program of one run, of its settings.

    Raises:
        ConfigError: it names the setting. A program that cannot be traced without them, either, raises its own error.
    """
    if settings:
        jax.eval_shape(trace, {})
    for name, values in settings.items():
        one = {name: jax.ShapeDtypeStruct((), jnp.asarray(values).dtype)}
        try:
            jax.eval_shape(trace, one)
        except Exception as error:  # JAX has several for it, and numpy, Python and haiku have their own.
            raise ConfigError(
                f"on_device (--on-device) does not go with several values of {name} in one program: it shapes the "
                f"program, or decides what is in it ({type(error).__name__}). Leave --on-device out, or give it one "
                "value. docs/on_device.md lists the settings that may differ."
            ) from error


def _refused(what: str, found: str) -> ConfigError:
    return ConfigError(
        f"on_device (--on-device) does not go with several values of {what} in one program: found {found}. Runs may "
        "differ in their seeds and in numeric settings of their agent; sweep the rest without --on-device."
    )
