"""Loggers that pass rows on: to several loggers, less often, or with fewer values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from agentkit.errors import ConfigError
from agentkit.loggers.base import Logger, to_numbers


@final
class Dispatcher(Logger):
    """Passes each row to several loggers.

    >>> from agentkit.loggers import InMemoryLogger
    >>> first, second = InMemoryLogger(), InMemoryLogger()
    >>> Dispatcher([first, second]).write({"steps": 1})
    >>> first.rows == second.rows == [{"steps": 1}]
    True
    """

    def __init__(self, loggers: Sequence[Logger]):
        self._loggers = list(loggers)

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on, converted once so that a device is read once."""
        row = to_numbers(values)
        for logger in self._loggers:
            logger.write(row)

    def close(self) -> None:
        """Closes every logger, also if one of them fails; then raises the first failure."""
        failure: Exception | None = None
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


@final
class EveryNSeconds(Logger):
    """Passes on the first row and then at most one row in each `seconds`; the last one on `close`."""

    def __init__(self, to: Logger, seconds: float, clock: Callable[[], float] = time.monotonic):
        if not seconds >= 0:
            raise ConfigError(f"seconds must be at least 0, found {seconds}.")
        self._to = to
        self._seconds = seconds
        self._clock = clock
        self._next = -math.inf
        self._held_back: dict[str, Any] | None = None

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on if it is time; otherwise keeps it, unread, in case it is the last."""
        now = self._clock()
        if now < self._next:
            self._held_back = dict(values)
            return
        self._next = now + self._seconds
        self._held_back = None
        self._to.write(values)

    def close(self) -> None:
        """Passes on the last row, if it was held back, and closes."""
        if self._held_back is not None:
            self._to.write(self._held_back)
            self._held_back = None
        self._to.close()


@final
class EveryNSteps(Logger):
    """Passes on the first row, and each row that reaches or passes a multiple of `steps`.

    Args:
        to: where rows go.
        steps: the period, in units of `step_key`.
        step_key: the value that counts.
    """

    def __init__(self, to: Logger, steps: int, step_key: str = "steps"):
        if steps < 1:
            raise ConfigError(f"steps must be at least 1, found {steps}.")
        self._to = to
        self._steps = steps
        self._step_key = step_key
        self._period: int | None = None

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on if it is the first in its period.

        Raises:
            ConfigError: if the row has no step.
        """
        if values.get(self._step_key) is None:
            raise ConfigError(f"EveryNSteps needs {self._step_key!r} in each row, found {sorted(values)}.")
        period = int(values[self._step_key]) // self._steps
        if period != self._period:
            self._period = period
            self._to.write(values)

    def close(self) -> None:
        """Closes the logger behind."""
        self._to.close()


@final
class DropNone(Logger):
    """Leaves out values that are None; a row of nothing else is not passed on."""

    def __init__(self, to: Logger):
        self._to = to

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes on what is not None."""
        row = {name: value for name, value in values.items() if value is not None}
        if row:
            self._to.write(row)

    def close(self) -> None:
        """Closes the logger behind."""
        self._to.close()


@final
class DropNonFinite(Logger):
    """Leaves out values that are None, NaN or infinite; a row of nothing else is not passed on."""

    def __init__(self, to: Logger):
        self._to = to

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes on what is finite."""
        row = {n: v for n, v in to_numbers(values).items() if v is not None and math.isfinite(v)}
        if row:
            self._to.write(row)

    def close(self) -> None:
        """Closes the logger behind."""
        self._to.close()


@final
class OnlyKeys(Logger):
    """Passes on only the named values; a row with none of them is not passed on."""

    def __init__(self, to: Logger, keys: Collection[str]):
        self._to = to
        self._keys = frozenset(keys)

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes on the named values."""
        row = {name: value for name, value in values.items() if name in self._keys}
        if row:
            self._to.write(row)

    def close(self) -> None:
        """Closes the logger behind."""
        self._to.close()
