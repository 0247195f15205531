"""Reads ``--view``: what a model sees of the past, in the place of the observation."""

from __future__ import annotations

import argparse
from typing import Any

from agentkit.errors import ConfigError


def find_views(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the views of ``--view``, by name; none where it is not given.

    Raises:
        ConfigError: a view of another form, of a name that is taken, or of what cannot be seen.
    """
    found: dict[str, Any] = {}
    for text in arguments.view or ():
        name, view = _parse(text)
        if name in found:
            raise ConfigError(f"--view {name} is given twice; give it once.")
        found[name] = view
    return found


def _parse(text: str) -> tuple[str, Any]:
    from agentkit.agents.addons import View

    name, equals, rest = text.partition("=")
    rest, comma, fill = rest.partition(",fill=")
    column, colon, shift = rest.partition(":")
    if not (name and equals and column and colon and shift) or (comma and not fill):
        raise ConfigError(
            "--view: expected NAME=COLUMN:SHIFT, such as window=observation:-50:0, previous=action:-1 or "
            f"some=action:-4,-2,-1,fill=-1; found {text!r}."
        )
    try:
        return name, View(column, _shift(shift), _fill(fill) if comma else "zeros")
    except ConfigError as error:
        raise ConfigError(f"--view {name}: {error}") from error


def _shift(text: str) -> Any:
    if ":" in text:
        return text
    try:
        shifts = [int(word) for word in text.split(",")]
    except ValueError:
        return text  # `View` says what it expected.
    return shifts if "," in text else shifts[0]


def _fill(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
