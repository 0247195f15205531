"""A log that cannot be written must not end the training that it is about."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from agentkit.loggers.base import Logger, to_numbers


@final
class BestEffortLogger(Logger):
    """Passes rows on; one that meets an OSError (a full disk) is dropped, and the next is tried again.

    The first failure in a row of them, and the end of it, are told on standard error.

    Attributes:
        num_dropped: rows so far.
    """

    def __init__(
        self,
        make: Callable[[], Logger],
        name: str,
        *,
        on_drop: Callable[[int], None] | None = None,
        retry_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Makes the logger behind.

        Args:
            make: makes it; where that meets an OSError it is called again later.
            name: of the log, for people.
            on_drop: called with `num_dropped` after each row that is dropped.
            retry_seconds: between two such calls.
            clock: the time in seconds.
        """
        self.num_dropped = 0
        self._make = make
        self._name = name
        self._on_drop = on_drop
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._to: Logger | None = None
        self._retry_at = clock()
        self._num_missing = 0  # rows since the last one that was written
        self._failing = False
        self._closed = False
        with self._told():
            self._open()

    def write(self, values: Mapping[str, Any]) -> None:
        """Passes the row on if it can be written.

        Raises:
            ValueError: after `close`.
        """
        if self._closed:
            raise ValueError(f"The log {self._name} is closed.")
        row = to_numbers(values)
        with self._told():
            self._open()
            if self._to is not None:
                self._to.write(row)
                if self._failing:
                    _say(f"The log {self._name} is written again; {self._num_missing} rows are missing.")
                self._failing, self._num_missing = False, 0
                return
        self._num_missing += 1
        self.num_dropped += 1
        if self._on_drop is not None:
            self._on_drop(self.num_dropped)

    def close(self) -> None:
        """Closes the logger behind."""
        self._closed = True
        if self._to is not None:
            with self._told():
                self._to.close()

    def _open(self) -> None:
        if self._to is None and self._clock() >= self._retry_at:
            self._retry_at = self._clock() + self._retry_seconds
            self._to = self._make()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._failing:
                _say(f"The log {self._name} cannot be written: {error}. Its rows are dropped; training goes on.")
            self._failing = True


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # Standard error may be a file on the same disk.
        print(text, file=sys.stderr, flush=True)
