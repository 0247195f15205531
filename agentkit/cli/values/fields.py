"""Reads ``name=value`` words as a config's typed fields."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from typing import Any

from agentkit.counting import parse_whole
from agentkit.errors import ConfigError, unknown_name

BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def parse_value(text: str, annotation: Any) -> Any:
    """Returns `text` as a value of a field's type.

    Known types: int, float, bool, str, Literal, tuples (``256,256``), and unions with None (``none``), with schedules
    (``linear(1e-3, 0, 100_000)``; see `agentkit.learning.schedules`) or other dataclasses.

    Raises:
        ValueError: saying what was expected and found.
        TypeError: if values of this type cannot be written on a command line.

    >>> parse_value("256,256", tuple[int, ...]), parse_value("[64, 64]", tuple[int, ...])
    ((256, 256), (64, 64))
    >>> parse_value("none", float | None) is None
    True
    """
    origin = typing.get_origin(annotation)
    options = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _parse_union(text, options)
    if origin is typing.Literal:
        for option in options:
            if text == str(option):
                return option
        raise ValueError(f"expected one of {', '.join(map(str, options))}, found {text!r}")
    if origin is tuple:
        return _parse_tuple(text, options)
    if annotation is bool:
        if text.lower() not in BOOLS:
            raise ValueError(f"expected true or false, found {text!r}")
        return BOOLS[text.lower()]
    if annotation is int:
        return parse_whole(text)
    if annotation is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"expected a number, found {text!r}") from None
    if annotation is str:
        return text
    raise TypeError(f"values of type {type_name(annotation)} cannot be given on the command line")


def parse_settings(
    words: Sequence[str], config_class: type, owner: str, option: str = "--set", advice: str | None = None
) -> dict[str, Any]:
    """Reads fields by name from words such as ``learning_rate=1e-3``.

    Args:
        words: the words.
        config_class: the dataclass whose fields they set.
        owner: whose config this is, for messages.
        option: where the words stand, likewise.
        advice: where the fields are listed; None names ``agentkit show``.

    Raises:
        ConfigError: for a word without "=", a value of another type, or a field set twice.
        UnknownNameError: for a field that does not exist.
    """
    hints = field_types(config_class)
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option}: expected NAME=VALUE, such as {next(iter(hints))}=..., found {word!r}.")
        if name not in hints:
            raise unknown_name(f"config field of {owner}", name, hints, advice or f"See: agentkit show {owner}")
        if name in settings:
            raise ConfigError(f"{option} {name} is given twice; give it once.")
        try:
            settings[name] = parse_value(text, hints[name])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{option} {name} ({type_name(hints[name])}): {error}.") from error
    return settings


def field_types(config_class: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, by name, in order."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_class)}


def type_name(annotation: Any) -> str:
    """Returns a type as a person writes it.

    >>> type_name(tuple[int, ...]), type_name(float | None), type_name(typing.Literal["a", "b"])
    ('tuple[int, ...]', 'float | None', "'a' | 'b'")
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        names = [
            _class_name(option) if dataclasses.is_dataclass(option) else type_name(option)
            for option in typing.get_args(annotation)
        ]
        return " | ".join(dict.fromkeys(names))
    if annotation is type(None):
        return "None"
    if typing.get_origin(annotation) is collections.abc.Callable:
        return "schedule"  # Of optax's, which only Python can give.
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(annotation)))
    return annotation.__name__ if type(annotation) is type else str(annotation).replace("typing.", "")


def _class_name(cls: Any) -> str:
    return "schedule" if hasattr(cls, "extremes") else f"{cls.__name__.lower()}(...)"


def value_text(value: Any) -> str:
    """Returns how a value is shown; a schedule, or another dataclass, as it is written on the command line.

    >>> value_text((64, 64))
    '(64, 64)'
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    parts = []
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if field.default is dataclasses.MISSING:
            parts.append(repr(found))
        elif found != field.default:
            parts.append(f"{field.name}={json.dumps(found)}")
    return f"{type(value).__name__.lower()}({', '.join(parts)})"


def _parse_union(text: str, options: tuple[Any, ...]) -> Any:
    if type(None) in options and text.lower() == "none":
        return None
    failures: list[Exception] = []
    classes: dict[str, Any] = {type_name(cls).lower(): cls for cls in options if dataclasses.is_dataclass(cls)}
    if classes and "(" in text:
        return _parse_call(text, classes)
    for option in options:
        if option is not type(None) and not dataclasses.is_dataclass(option):
            try:
                return parse_value(text, option)
            except (ValueError, TypeError) as error:
                failures.append(error)
    others = ["none"] if type(None) in options else []
    others += [_example(classes)] if classes else []
    raise ValueError(f"{failures[0]} (or {' or '.join(others)})") if others else failures[0]


def _parse_call(text: str, classes: dict[str, Any]) -> Any:
    """Returns the object that ``name(1, 2, by="updates")`` makes; arguments are literals, and nothing is evaluated."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in classes:
            raise ValueError(f"expected one of {', '.join(f'{name}(...)' for name in classes)}, found {text!r}")
        arguments = [ast.literal_eval(argument) for argument in call.args]
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except SyntaxError as error:
        raise ValueError(f"expected {_example(classes)}, found {text!r}") from error
    try:
        return classes[call.func.id](*arguments, **settings)
    except (ConfigError, TypeError) as error:
        raise ValueError(f"{text}: {str(error).removesuffix('.')}") from error


def _example(classes: dict[str, Any]) -> str:
    """Returns how an object of one of these classes is written."""
    if "linear" in classes:
        return "a schedule such as linear(1e-3, 0, 100_000)"
    name, cls = next(iter(classes.items()))
    field = dataclasses.fields(cls)[0]
    return f"{name}({field.name}={field.default!r})"


def _parse_tuple(text: str, options: tuple[Any, ...]) -> tuple[Any, ...]:
    text = text.strip()
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(options) == 2 and options[1] is Ellipsis:
        return tuple(parse_value(part, options[0]) for part in parts)
    if len(parts) != len(options):
        raise ValueError(f"expected {len(options)} values separated by commas, found {text!r}")
    return tuple(parse_value(part, option) for part, option in zip(parts, options, strict=True))
