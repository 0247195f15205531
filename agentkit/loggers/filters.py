"""Loggers that pass rows on: to several loggers, under other names, or less often."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
class Labelled(Logger):
    """Passes rows on with a label before each name but the step's, so that one logger can take several logs.

    Closing it closes nothing: the logger behind is others' too.

    >>> from agentkit.loggers import InMemoryLogger
    >>> logger = InMemoryLogger()
    >>> Labelled(logger, "learner").write({"steps": 1, "loss": 0.5})
    >>> logger.rows
    [{'steps': 1, 'learner/loss': 0.5}]
    """

    def __init__(self, to: Logger, label: str, step_key: str = "steps"):
        self._to = to
        self._label = label
        self._step_key = step_key

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on."""
        self._to.write({name if name == self._step_key else f"{self._label}/{name}": values[name] for name in values})


@final
class Timed(Logger):
    """Adds the seconds since it was made to rows that have none, as ``seconds``.

    Args:
        to: gets the rows.
        already: seconds that a resumed run has taken before.
        clock: the time in seconds.
    """

    def __init__(self, to: Logger, already: float = 0.0, clock: Callable[[], float] = time.monotonic):
        self._to = to
        self._clock = clock
        self._start = clock() - already

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on."""
        self._to.write({**values, "seconds": values.get("seconds", round(self._clock() - self._start, 3))})

    def close(self) -> None:
        """Closes the logger behind."""
        self._to.close()


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
