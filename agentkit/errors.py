"""agentkit's errors. Each message says what was expected, what was found and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DISTRIBUTION = "agentkit-rl"
"""What pip installs; the package that is imported is `agentkit`. The registry's `agentkit` is somebody else's."""


class AgentkitError(Exception):
    """Marks an error that agentkit raises for something a user can cause."""


class ConfigError(AgentkitError, ValueError):
    """Says that a setting is impossible, unknown, or contradicts another one."""


class SpecError(AgentkitError, ValueError):
    """Says that data does not have the structure, shape or dtype that its spec or signature promises."""


class UnknownNameError(AgentkitError, KeyError):
    """Says that a name (of an agent, environment, table, config field, ...) is not among the known ones."""

    def __str__(self) -> str:  # KeyError would print the message's repr.
        return str(self.args[0])


class MissingExtraError(AgentkitError, ImportError):
    """Says that an optional package is needed and not installed; the message names the extra."""


class ReplayTimeoutError(AgentkitError, TimeoutError):
    """Says that replay did not let an insert or a sample through before its deadline."""


class VariablesTimeoutError(AgentkitError, TimeoutError):
    """Says that no parameters were published before the deadline."""


class ReplayClosedError(AgentkitError, RuntimeError):
    """Says that replay was closed or its server is gone."""


class CheckpointError(AgentkitError, RuntimeError):
    """Says that a checkpoint cannot be written or read, or does not fit the object it is restored into."""


def unknown_name(kind: str, name: str, known: Iterable[str], advice: str = "") -> UnknownNameError:
    """Returns an error that says `name` is no `kind`, proposes the nearest match and lists the known names.

    Args:
        kind: what the name should have been, e.g. "agent".
        name: what was found.
        known: the names that exist.
        advice: a closing sentence on what to do, if there is more to say.
    """
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    listing = f" Known: {', '.join(known)}." if known else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint}{listing}{' ' + advice if advice else ''}")


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Returns an error that says which extra brings `package`."""
    return MissingExtraError(
        f"The package {package!r} is needed for this and is not installed. "
        f"Install it with: pip install '{DISTRIBUTION}[{extra}]'"
    )
