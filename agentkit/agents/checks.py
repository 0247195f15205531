"""What a `Config` refuses when it is built: values out of range, each by an error that names it. None is taken."""

from __future__ import annotations

from typing import Any

from agentkit.errors import ConfigError


def check_fractions(config: Any, *names: str) -> None:
    """Refuses what is not in [0, 1]."""
    _check(config, names, lambda value: 0 <= value <= 1, "in [0, 1]")


def check_positive(config: Any, *names: str) -> None:
    """Refuses 0 and less."""
    _check(config, names, lambda value: value > 0, "> 0")


def check_not_negative(config: Any, *names: str) -> None:
    """Refuses less than 0."""
    _check(config, names, lambda value: value >= 0, "at least 0")


def check_counts(config: Any, *names: str) -> None:
    """Refuses less than 1."""
    _check(config, names, lambda value: value >= 1, "at least 1")


def _check(config: Any, names: tuple[str, ...], holds: Any, expected: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ConfigError(f"{name} must be {expected}, found {value}.")
