"""Checks the loggers that a config names or holds, before anything is made."""

from __future__ import annotations

import inspect
from typing import Any

from agentkit import loggers
from agentkit.errors import ConfigError, unknown_name
from agentkit.experiment.config.identity import MissingLogger

NAMES = ("csv", "jsonl", "mlflow", "tensorboard", "wandb")
"""Loggers by name; "csv" is always there."""


def check_names(found: Any) -> tuple[Any, ...]:
    """Returns the loggers that a config was given, as a tuple.

    Raises:
        ConfigError: one is neither a name, nor a `Logger`, nor a function of one argument.
        UnknownNameError: there is no logger of that name.
    """
    given = (found,) if isinstance(found, str | loggers.Logger) or callable(found) else tuple(found)
    for logger in given:
        if isinstance(logger, str):
            if logger not in NAMES:
                raise unknown_name("logger", logger, NAMES, "Or give a Logger of your own.")
        elif not isinstance(logger, loggers.Logger | MissingLogger) and not _takes_one(logger):
            raise ConfigError(
                f"loggers: expected names ({', '.join(NAMES)}), Logger objects, or functions RunInfo -> Logger, found "
                f"{logger!r}."
            )
    return given


def _takes_one(make: Any) -> bool:
    try:
        inspect.signature(make).bind(None)
    except (TypeError, ValueError):
        return False
    return True
