"""The logger interface: named numbers go in, one row at a time; and what a logger is told of its run."""

from __future__ import annotations

import abc
import dataclasses
import numbers
from collections.abc import Mapping
from pathlib import Path
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
@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Says to a logger which run it is for, once in each process that logs.

    Attributes:
        name: of the run folder; without one, agent, environment and seed.
        config: hyperparameters, flat: the agent's settings, and ``agent``, ``environment``, ``seed``, ``num_steps``. Of
            several agents, those of each policy that learns have its id before them: ``shared.learning_rate``.
        directory: the run folder; None if there is none.
        node: which log this process writes, of a program of many processes: "learner", "train-1"; None in one process.
        resume_step: the step that a resumed run goes on from; None for a new run.
    """

    name: str
    config: Mapping[str, bool | Number | str]
    directory: Path | None = None
    node: str | None = None
    resume_step: int | None = None


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
