"""Range checks of settings: a field's type says its range, and a value outside of it is refused.

A field such as ``num_samples: Count = 20`` is checked by `check_ranges`, which a config calls when it is built.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from agentkit.errors import ConfigError


class Range(NamedTuple):
    """What a value must be.

    Attributes:
        expected: the range, as the error says it: "in [0, 1]".
        holds: whether a value is in it.
    """

    expected: str
    holds: Callable[[Any], bool]


def number(expected: str, holds: Callable[[float], bool]) -> Range:
    """Returns the range of finite numbers for which `holds` is true."""
    return Range(expected, lambda value: _is_number(value) and math.isfinite(value) and holds(value))


def whole(expected: str, holds: Callable[[int], bool]) -> Range:
    """Returns the range of whole numbers for which `holds` is true."""
    return Range(expected, lambda value: _is_number(value) and isinstance(value, numbers.Integral) and holds(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


Finite = Annotated[float, number("a finite number", lambda value: True)]
Fraction = Annotated[float, number("in [0, 1]", lambda value: 0 <= value <= 1)]
OpenFraction = Annotated[float, number("in [0, 1)", lambda value: 0 <= value < 1)]
Rate = Annotated[float, number("in (0, 1]", lambda value: 0 < value <= 1)]
Positive = Annotated[float, number("> 0 and finite", lambda value: value > 0)]
NotNegative = Annotated[float, number("at least 0 and finite", lambda value: value >= 0)]
NotPositive = Annotated[float, number("at most 0 and finite", lambda value: value <= 0)]
Count = Annotated[int, whole("a whole number of at least 1", lambda value: value >= 1)]
CountFromTwo = Annotated[int, whole("a whole number of at least 2", lambda value: value >= 2)]
CountFromZero = Annotated[int, whole("a whole number of at least 0", lambda value: value >= 0)]
Sizes = Annotated[
    tuple[int, ...],
    Range(
        "whole numbers of at least 1, or () for a linear network",
        lambda sizes: isinstance(sizes, tuple) and all(_is_count(size) for size in sizes),
    ),
]


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, numbers.Integral) and value >= 1


def ranges_of(cls: type) -> dict[str, list[Range]]:
    """Returns the ranges that each field of a dataclass has in its type."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: [
            of_field
            for part in (hints[field.name], *typing.get_args(hints[field.name]))
            for of_field in getattr(part, "__metadata__", ())
            if isinstance(of_field, Range)
        ]
        for field in dataclasses.fields(cls)
    }


def check_ranges(config: Any) -> None:
    """Refuses a field whose value is not in the `Range` of its type; None, but by one such as ``Count | None``.

    Raises:
        ConfigError: it names the field, the range and the value.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for name, ranges in ranges_of(type(config)).items():
        value = getattr(config, name)
        if value is None and type(None) in typing.get_args(hints[name]):
            continue
        for of_field in ranges:
            if not of_field.holds(value):
                raise ConfigError(f"{name} must be {of_field.expected}, found {value}.")


def check_order(config: Any, lower: str, upper: str) -> None:
    """Refuses a config in which the field `lower` is not below the field `upper`.

    Raises:
        ConfigError: it names both fields and their values.
    """
    if not getattr(config, lower) < getattr(config, upper):
        raise ConfigError(
            f"{lower} must be less than {upper}, found {lower}={getattr(config, lower)} and "
            f"{upper}={getattr(config, upper)}."
        )
