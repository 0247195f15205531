"""Writes a run's callbacks down by name, makes them again, and says where a resumed run has others."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentkit.callbacks import Callback
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.recipes import decode, encode, encode_name, find, named_modules, names_only, same, unnamed
from agentkit.experiment.trust import check_trusted, import_named


@final
class MissingCallbackWarning(UserWarning):
    """Says that a resumed run goes on without a callback that it had."""


def describe(callbacks: Sequence[Callback]) -> list[dict[str, Any]]:
    """Describes callbacks as plain values: classes by name, and the settings that their ``__init__`` takes."""
    return [{**_encode(each), "changes_training": bool(each.changes_training)} for each in callbacks]


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
    codes = record.get("callbacks", [])
    reasons = [f"{_name(code)}{path} is {reason}" for code in codes for path, reason in unnamed(code, "")]
    if reasons:
        raise ConfigError(
            f"The run {run} has callbacks that its folder cannot make again: {'; '.join(reasons)}. Call "
            f"agentkit.resume({str(run)!r}, callbacks=[...]) with the same ones, or with [] to go on without those "
            "that do not change the training."
        )
    import_named(imports)
    check_trusted([module for code in codes for module in named_modules(code)], imports, run)
    return [_decode(code) for code in codes]


def _decode(code: Mapping[str, Any]) -> Callback:
    cls = find(code["type"])
    if not (isinstance(cls, type) and issubclass(cls, Callback)):
        raise ConfigError(f"Expected a callback at {code['type']}, found {cls!r}.")
    try:
        return cls(**{name: decode(child) for name, child in code["fields"].items()})
    except TypeError as error:
        raise ConfigError(f"The callback {code['type']} cannot be made again: {error}.") from error


def check_same(saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], path: object) -> None:
    """Refuses a resume with other callbacks where they change the training; warns of others that are missing.

    Args:
        saved: what `describe` returned for the checkpoint.
        now: the same of the run that goes on.
        path: the checkpoint, for messages.

    Raises:
        CheckpointError: it names the callbacks.
    """
    ones, others = ([each for each in entries if each["changes_training"]] for entries in (saved, now))
    if len(ones) != len(others) or not all(same(one, other) for one, other in zip(ones, others, strict=True)):
        raise CheckpointError(
            f"The checkpoint {path} was made with callbacks that change the training: {_names(ones)}; this run has "
            f"{_names(others)}. Give the same ones as callbacks=[...], or start a new run."
        )
    names = [_name(each) for each in now]
    for each in saved:
        if _name(each) not in names and not each["changes_training"]:
            warnings.warn(
                f"The run was made with the callback {_name(each)}, and goes on without it.",
                MissingCallbackWarning,
                stacklevel=2,
            )


def _names(codes: Sequence[Any]) -> str:
    return ", ".join(f"{_name(code)}({names_only(code).get('fields', '')})" for code in codes) or "none"


def _name(code: Mapping[str, Any]) -> str:
    return str(code.get("type") or code.get("name") or "of your own").rpartition(":")[2]
