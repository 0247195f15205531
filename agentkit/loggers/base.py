"""The logger interface: named numbers go in, one row at a time."""

from __future__ import annotations

import abc
import numbers
from collections.abc import Mapping
from typing import Any, Self, final

from agentkit.errors import SpecError

Number = int | float


class Logger(abc.ABC):
    """Takes rows of named numbers. A context manager; `close` may be called twice."""

    @abc.abstractmethod
    def write(self, values: Mapping[str, Any]) -> None:
        """Takes one row: Python, numpy or JAX scalars by name; None means 'no value this time'."""

    def close(self) -> None:
        """Writes buffered rows and frees the logger's resources."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@final
class InMemoryLogger(Logger):
    """Keeps every row in `rows`; for notebooks and tests.

    >>> logger = InMemoryLogger()
    >>> logger.write({"steps": 10, "loss": 0.5})
    >>> logger.rows
    [{'steps': 10, 'loss': 0.5}]
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Number | None]] = []

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends one row, its values converted to Python numbers."""
        self.rows.append(to_numbers(values))


def to_numbers(values: Mapping[str, Any]) -> dict[str, Number | None]:
    """Returns a row as Python ints and floats (bools become 0 and 1); None is kept.

    Arrays of one element are accepted whatever their rank. Reading a JAX array waits for the device.

    Raises:
        SpecError: for a value that is not one number, naming it.
    """
    return {name: None if value is None else _to_number(name, value) for name, value in values.items()}


def _to_number(name: str, value: Any) -> Number:
    if isinstance(value, numbers.Integral):  # bool included
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    # By attribute, so that JAX arrays need no JAX here.
    if hasattr(value, "item") and getattr(value, "size", None) == 1:
        item = value.item()
        if isinstance(item, numbers.Integral):
            return int(item)
        if isinstance(item, numbers.Real):
            return float(item)
    found = f"{type(value).__name__} of shape {value.shape}" if hasattr(value, "shape") else repr(value)
    raise SpecError(f"Logged value {name!r}: expected one number or None, found {found}. Reduce it first.")
