"""Finds what a user names as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
from typing import Any

from agentkit.errors import ConfigError, unknown_name


def import_callable(name: str, what: str, kind: str) -> Any:
    """Imports a module and returns the class or function in it that ``MODULE:NAME`` names.

    Ask only for names that the user gave, never on the word of a run folder.

    Args:
        name: ``my_package.my_module:Name``, or ``...:Class.method``.
        what: is named so, for messages, such as "environment".
        kind: what the module is asked for, for messages.

    Raises:
        ConfigError: the module cannot be imported, or has nothing there that can be called.
        UnknownNameError: the module has no such name; proposes the nearest one.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"The {what} {name!r}: {module} cannot be imported: {error!r}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            known = [label for label, value in vars(found).items() if callable(value) and not label.startswith("_")]
            raise unknown_name(f"{kind} of {module}", path, known)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"The {what} {name!r}: expected a class or function there, found {found!r:.80}.")
    return found
