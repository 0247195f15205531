"""Reads ``--log``: which loggers a run has besides CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkit.errors import ConfigError, unknown_name


def parse_loggers(words: Sequence[str] | None, imports: Sequence[str] = ()) -> list[Any]:
    """Returns the loggers that words such as ``tensorboard,wandb`` name.

    Args:
        words: each a name of `LOGGERS`, or ``module:name`` of a module that `imports` cover; several with commas.
        imports: packages that the user named.

    Raises:
        ConfigError: a word is empty, or names no function or class of the module.
        UnknownNameError: there is no such logger; proposes the nearest name.
    """
    from agentkit.experiment.config.experiment_config import LOGGERS

    found: list[Any] = []
    for name in (part.strip() for word in words or () for part in word.split(",")):
        if not name:
            raise ConfigError("--log: expected names with a comma between, such as tensorboard,wandb, found none.")
        if ":" in name:
            found.append(_find(name, imports))
        elif name in LOGGERS:
            found.append(name)
        else:
            advice = "One of your own is named MODULE:NAME, with --import MODULE."
            raise unknown_name("logger of --log", name, LOGGERS, advice)
    return list(dict.fromkeys(found))


def _find(name: str, imports: Sequence[str]) -> Any:
    from agentkit.experiment.config.recipes import decode

    return decode({"function": name}, imports=imports, run=f"asked for with --log {name}")
