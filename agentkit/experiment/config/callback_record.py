"""Writes a run's callbacks down by name, makes them again, and says where a resumed run has others."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from agentkit.callbacks import Callback
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.codes import Code, in_short, parse
from agentkit.experiment.config.recipes import check, encode, encode_name, names_only
from agentkit.experiment.config.trust import import_named

_CHANGES = "changes_training"


@final
class MissingCallbackWarning(UserWarning):
    """Says that a resumed run goes on without a callback that it had."""


class SavedCallback(NamedTuple):
    """Holds what `describe` wrote of a callback: as it is, and read."""

    entry: Mapping[str, Any]
    code: Code

    @property
    def changes_training(self) -> bool:
        """Returns whether the run would be another one without it."""
        return bool(self.entry[_CHANGES])

    @property
    def name(self) -> str:
        """Returns the name of its class."""
        known = self.code.value if self.code.form == "type" else self.code.known
        return str(known or "of your own").rpartition(":")[2]


def describe(callbacks: Sequence[Callback]) -> list[dict[str, Any]]:
    """Describes callbacks as plain values: classes by name, and the settings that their ``__init__`` takes."""
    return [{**_encode(each), _CHANGES: bool(each.changes_training)} for each in callbacks]


def _encode(callback: Callback) -> dict[str, Any]:
    cls = type(callback)
    code = encode_name("type", cls)
    if "unnamed" in code:
        return code
    settings: Any = callback
    if dataclasses.is_dataclass(settings):
        given = [field.name for field in dataclasses.fields(settings) if field.init]
        return code | {"fields": {name: encode(getattr(callback, name)) for name in given}}
    if cls.__init__ is object.__init__:
        return code | {"fields": {}}
    return {
        "unnamed": f"a {cls.__qualname__}, whose settings nobody knows: make it a dataclass",
        "name": code["type"],
        "digest": code["digest"],
    }


def read(entries: Any, where: str = "") -> list[SavedCallback]:
    """Reads what `describe` returned.

    Args:
        entries: of a run's record.
        where: what comes before the place in an error, such as "runs/x, ".

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(entries, list):
        raise ConfigError(
            f"{where}callbacks: expected a list of callbacks, found {in_short(entries)}: restore the file."
        )
    found = []
    for number, entry in enumerate(entries):
        place = f"{where}callbacks[{number}]"
        if not isinstance(entry, Mapping) or type(entry.get(_CHANGES)) is not bool:
            raise ConfigError(
                f"{place}: expected a callback as agentkit writes it, found {in_short(entry)}: restore the file."
            )
        code = parse({key: value for key, value in entry.items() if key != _CHANGES}, place)
        if code.form not in ("type", "unnamed"):
            raise ConfigError(f"{place}: expected a class and its fields, found {in_short(entry)}.")
        found.append(SavedCallback(entry, code))
    return found


def rebuild(record: Mapping[str, Any], run: object, imports: Sequence[str] = ()) -> list[Callback]:
    """Makes the callbacks of a run again.

    Args:
        record: the content of ``config.json``.
        run: the run folder, for messages.
        imports: packages that the user named; they are imported.

    Raises:
        ConfigError: one cannot be made again.
        UntrustedCodeError: one is code of a module that is neither loaded nor named.
    """
    saved = read(record.get("callbacks", []), f"{run}, ")
    reasons = [f"{each.name}{path} is {reason}" for each in saved for path, reason in each.code.unnamed("")]
    if reasons:
        raise ConfigError(
            f"The run {run} has callbacks that its folder cannot make again: {'; '.join(reasons)}. Call "
            f"agentkit.resume({str(run)!r}, callbacks=[...]) with the same ones, or with [] to go on without those "
            "that do not change the training."
        )
    import_named(imports)
    return [checked.build(kind=Callback) for checked in check([each.code for each in saved], imports, run)]


def check_same(saved: Any, now: Any, where: str) -> None:
    """Refuses a resume with other callbacks where they change the training; warns of others that are missing.

    Args:
        saved: what `describe` returned then.
        now: the same of the run that goes on.
        where: it is saved, for messages.

    Raises:
        CheckpointError: it names the callbacks.
    """
    before, after = read(saved, f"{where}, "), read(now)
    ones, others = ([each for each in callbacks if each.changes_training] for callbacks in (before, after))
    if not are_same(ones, others):
        raise CheckpointError(
            f"{where} was made with callbacks that change the training: {_names(ones)}; this run has "
            f"{_names(others)}. Give the same ones as callbacks=[...], or start a new run."
        )
    names = [each.name for each in after]
    for each in before:
        if each.name not in names and not each.changes_training:
            warnings.warn(
                f"The run was made with the callback {each.name}, and goes on without it.",
                MissingCallbackWarning,
                stacklevel=2,
            )


def are_same(ones: Sequence[SavedCallback], others: Sequence[SavedCallback]) -> bool:
    """Returns whether callbacks are of the same classes in the same order, with the same settings."""
    return len(ones) == len(others) and all(a.code.same(b.code) for a, b in zip(ones, others, strict=True))


def _names(callbacks: Sequence[SavedCallback]) -> str:
    return ", ".join(f"{each.name}({names_only(each.entry).get('fields', '')})" for each in callbacks) or "none"
