"""What a `Config` refuses when it is built: values out of range, each by an error that names it. None is taken.

A field says its range with its type, such as ``num_samples: Count = 20``, and `check_ranges` looks at all fields.
"""

from __future__ import annotations

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


Fraction = Annotated[float, Range("in [0, 1]", lambda value: 0 <= value <= 1)]
Positive = Annotated[float, Range("> 0", lambda value: value > 0)]
NotNegative = Annotated[float, Range("at least 0", lambda value: value >= 0)]
Count = Annotated[int, Range("at least 1", lambda value: value >= 1)]


def check_ranges(config: Any) -> None:
    """Refuses a field whose value is not in the `Range` of its type; None is taken by one such as ``Count | None``.

    Raises:
        ConfigError: it names the field, the range and the value.
    """
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        for part in (hint, *typing.get_args(hint)):
            for of_field in getattr(part, "__metadata__", ()):
                if value is not None and not of_field.holds(value):
                    raise ConfigError(f"{name} must be {of_field.expected}, found {value}.")
