"""agentkit's errors. Each message says what was expected, what was found and what to do."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from typing import Literal

DISTRIBUTION = "agentkit-rl"
"""What pip installs; the package that is imported is `agentkit`. The registry's `agentkit` is somebody else's."""


OnNan = Literal["stop", "warn"]
"""What to do about a number that is NaN or infinite: end the run, or warn and go on."""


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


class NonFiniteError(AgentkitError, FloatingPointError):
    """Says that a number of the training is NaN or infinite; starting again does not mend that."""


class NonFiniteWarning(RuntimeWarning):
    """Says that a number of the training is NaN or infinite, and that it goes on."""


class RawFramesWarning(UserWarning):
    """Says that an agent would see an Atari game's single frames, as the screen has them."""


def tell_not_finite(message: str, on_nan: str) -> None:
    """Raises an error that says what is NaN or infinite; where `on_nan` is "warn", warns instead.

    Raises:
        NonFiniteError: `on_nan` is "stop".
    """
    if on_nan == "warn":
        warnings.warn(f"{message} Training goes on.", NonFiniteWarning, stacklevel=3)
        return
    raise NonFiniteError(f"{message} on_nan='warn' (--on-nan warn) goes on all the same.")


_MANY_NAMES = 12


def unknown_name(kind: str, name: str, known: Iterable[str], advice: str = "") -> UnknownNameError:
    """Returns an error that says `name` is no `kind`, proposes the nearest match and lists the known names.

    Many names are not listed where one of them is very near.

    Args:
        kind: what the name should have been, e.g. "agent".
        name: what was found.
        known: the names that exist.
        advice: a closing sentence on what to do, if there is more to say.
    """
    known = sorted(known)
    in_lower_case = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.5)
    is_slip = bool(difflib.get_close_matches(name.lower(), nearest, cutoff=0.8)) and len(known) > _MANY_NAMES
    hint = f" Did you mean {in_lower_case[nearest[0]]!r}?" if nearest else ""
    listing = f" Known: {', '.join(known)}." if known and not is_slip else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint}{listing}{' ' + advice if advice else ''}")


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Returns an error that says which extra brings `package`."""
    return MissingExtraError(
        f"The package {package!r} is needed for this and is not installed. "
        f"Install it with: pip install '{DISTRIBUTION}[{extra}]'"
    )
