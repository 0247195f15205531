"""Range checks of settings: a field's type says its range, and a value outside of it is refused.

A field such as ``num_samples: Count = 20`` is checked by `check_ranges`, which a config calls when it is built
(decision 44).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeGuard

import numpy as np

from agentkit.errors import ConfigError
from agentkit.learning.schedules import Schedule, unit_of


class Range(NamedTuple):
    """Describes the values that a setting may have.

    Attributes:
        expected: the range, as the error says it: "in [0, 1]".
        holds: whether a value is in it.
    """

    expected: str
    holds: Callable[[object], bool]


_LARGEST = 2**63 - 1
"""The largest whole number that containers, numpy and replay count by."""


def number(expected: str, holds: Callable[[float], bool]) -> Range:
    """Returns the range of finite numbers for which `holds` is true."""
    return Range(expected, lambda value: _is_number(value) and math.isfinite(value) and holds(value))


def whole(expected: str, holds: Callable[[int], bool]) -> Range:
    """Returns the range of whole numbers for which `holds` is true."""
    return Range(expected, lambda value: _is_whole(value) and holds(value))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


Finite = Annotated[float, number("a finite number", lambda value: True)]
Fraction = Annotated[float, number("in [0, 1]", lambda value: 0 <= value <= 1)]
OpenFraction = Annotated[float, number("in [0, 1)", lambda value: 0 <= value < 1)]
Rate = Annotated[float, number("in (0, 1]", lambda value: 0 < value <= 1)]
ProperFraction = Annotated[float, number("in (0, 1)", lambda value: 0 < value < 1)]
Positive = Annotated[float, number("> 0 and finite", lambda value: value > 0)]
NotNegative = Annotated[float, number("at least 0 and finite", lambda value: value >= 0)]
NotPositive = Annotated[float, number("at most 0 and finite", lambda value: value <= 0)]
Count = Annotated[int, whole("a whole number of at least 1", lambda value: value >= 1)]
CountFromTwo = Annotated[int, whole("a whole number of at least 2", lambda value: value >= 2)]
CountFromZero = Annotated[int, whole("a whole number of at least 0", lambda value: value >= 0)]
Sizes = Annotated[
    tuple[int, ...],
    Range(
        "a tuple of whole numbers of at least 1, or () for a linear network",
        lambda sizes: isinstance(sizes, tuple) and all(_is_whole(size) and size >= 1 for size in sizes),
    ),
]

_FUNCTION = typing.get_args(Schedule)[-1]
_BY_STEPS = "by steps"
ScheduleOfSteps = Annotated[Schedule, _BY_STEPS]

InnerFraction = Annotated[float, number("between 0 and 1", lambda value: 0 < value < 1)]


@functools.cache
def ranges_of(cls: type) -> dict[str, list[Range]]:
    """Returns the ranges that each field of a dataclass has in its type."""
    return {
        name: [of_field for of_field in metadata if isinstance(of_field, Range)]
        for name, metadata in _metadata_of(cls).items()
    }


@functools.cache
def _metadata_of(cls: type) -> dict[str, list[Any]]:
    """Returns the metadata of each field's type, and of the parts of a union."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: [
            of_field
            for part in (hints[field.name], *typing.get_args(hints[field.name]))
            for of_field in getattr(part, "__metadata__", ())
        ]
        for field in dataclasses.fields(cls)
    }


def check_ranges(config: object) -> None:
    """Refuses a field whose value is not in the `Range` of its type.

    None is taken by a field such as ``Count | None``, and a schedule by one such as ``Positive | Schedule``, where all
    of the schedule's values must be in the range, or of a function, such as a schedule of optax's, the value after 0
    updates. A schedule may also reach 0. Where the type has `ScheduleOfSteps`,
    the schedule must count steps. A field of type ``bool`` takes True and False, and no word for them.

    Raises:
        ConfigError: it names the field, the range and the value.
    """
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        check_setting(type(config), field.name, getattr(config, field.name))


@functools.cache
def _hints_of(cls: type) -> dict[str, Any]:
    """Returns the types of a config's fields; to work them out takes 0.3 ms, for each field that is checked."""
    return typing.get_type_hints(cls)


def check_setting(cls: type, name: str, value: Any) -> None:
    """Refuses a value of one setting of a config, as `check_ranges` does for all.

    Raises:
        ConfigError: it names the field, the range and the value.
    """
    taken = typing.get_args(_hints_of(cls)[name])
    if value is None and type(None) in taken:
        return
    if _hints_of(cls)[name] is bool or taken == (bool, type(None)):
        check_bool(name, value)
    if callable(value) and ranges_of(cls)[name] and _FUNCTION not in taken:
        raise _refuse_schedule(cls, name, value)
    scheduled = callable(value) and _FUNCTION in taken
    if _is_whole(value) and not -_LARGEST <= value <= _LARGEST:
        raise ConfigError(f"{name} must be a whole number of 64 bits, at most {_LARGEST:,}, found {value}.")
    for of_field in ranges_of(cls)[name]:
        for each in _extremes(name, value) if scheduled else (value,):
            if not of_field.holds(each) and not (scheduled and each == 0):
                found = f"the string {value!r}" if isinstance(value, str) else value
                is_schedule = isinstance(value, str) and _FUNCTION in taken
                advice = " A schedule is an object here: learning.Linear(1e-3, 0.0, 100_000)." if is_schedule else ""
                raise ConfigError(f"{name} must be {of_field.expected}, found {found}.{advice}")
    if scheduled and unit_of(value) != "steps" and _BY_STEPS in _metadata_of(cls)[name]:
        raise ConfigError(f'{name} must be a schedule by="steps", found {value}: an actor counts no updates.')


def check_bool(name: str, value: object) -> None:
    """Refuses what is neither True nor False, such as the string "False", which Python counts as true.

    Raises:
        ConfigError: it names the setting and the value.
    """
    if not isinstance(value, bool | np.bool_):
        found = f"the string {value!r}" if isinstance(value, str) else f"{value!r:.80}"
        raise ConfigError(f"{name} must be True or False, found {found}.")


def _extremes(name: str, schedule: Any) -> tuple[float, ...]:
    """Returns the values between which all others are; of a function the one after 0 updates, the only known one."""
    if hasattr(schedule, "extremes") and not isinstance(schedule, type):
        extremes: tuple[float, ...] = schedule.extremes
        return extremes
    try:
        return (float(schedule(0)),)
    except Exception as error:
        raise ConfigError(
            f"{name} must be a number or a schedule: learning.Linear(1e-3, 0.0, 100_000), or one of optax's, a "
            f"function of the count of updates; found {schedule}, which says of 0: {error}"
        ) from error


def _refuse_schedule(cls: type, name: str, value: object) -> ConfigError:
    expected = " or ".join(of_field.expected for of_field in ranges_of(cls)[name]) or "a plain value"
    schedulable = ", ".join(field for field, hint in _hints_of(cls).items() if _FUNCTION in typing.get_args(hint))
    return ConfigError(
        f"{name} must be {expected}, found {value!r:.80}. It takes no schedule"
        + f"; {schedulable} do." * bool(schedulable)
    )


def unranged(cls: type) -> list[str]:
    """Returns the numeric fields of a config that have no range in their type."""
    hints, ranges = _hints_of(cls), ranges_of(cls)
    return [
        name for name, hint in hints.items() if {int, float} & {hint, *typing.get_args(hint)} and not ranges.get(name)
    ]


def check_order(config: object, lower: str, upper: str) -> None:
    """Refuses a config in which the field `lower` is not below the field `upper`.

    Raises:
        ConfigError: it names both fields and their values.
    """
    if not getattr(config, lower) < getattr(config, upper):
        raise ConfigError(
            f"{lower} must be less than {upper}, found {lower}={getattr(config, lower)} and "
            f"{upper}={getattr(config, upper)}."
        )
