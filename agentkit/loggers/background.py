"""A logger that talks to a network must not make the training wait for it."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, final

from agentkit.loggers.base import Logger, Number, to_numbers

_MOST_ROWS = 10_000


@final
class BackgroundLogger(Logger):
    """Passes rows on from a thread of its own; the writer never waits.

    Where the logger behind is slower than its rows for long, those beyond `_MOST_ROWS` are dropped, which is told once
    on standard error.

    Args:
        to: gets the rows, in order.
        name: of the log, for people.
        close_seconds: how long `close` waits for the last rows.
    """

    def __init__(self, to: Logger, name: str, close_seconds: float = 30.0):
        self._to = to
        self._name = name
        self._close_seconds = close_seconds
        self._rows: queue.Queue[dict[str, Number | None] | None] = queue.Queue(_MOST_ROWS)
        self._error: Exception | None = None
        self._dropping = False
        self._closed = False
        self._thread = threading.Thread(target=self._pass_on, name=f"log {name}", daemon=True)
        self._thread.start()

    def write(self, values: Mapping[str, Any]) -> None:
        """Takes a row to be passed on.

        Raises:
            Exception: what the logger behind has raised at an earlier row.
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._closed:
            raise ValueError(f"The log {self._name} is closed.")
        self._raise()
        try:
            self._rows.put_nowait(to_numbers(values))
        except queue.Full:
            if not self._dropping:
                _say(f"The log {self._name} is slower than its rows. Some are dropped; training goes on.")
            self._dropping = True

    def close(self) -> None:
        """Waits for the last rows, for `close_seconds` at most, and closes the logger behind in the caller's thread."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + self._close_seconds
        with contextlib.suppress(queue.Full):
            self._rows.put(None, timeout=self._close_seconds)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive():
            _say(f"The log {self._name} did not take its last rows within {self._close_seconds:g} s; they are missing.")
            return
        self._to.close()
        self._raise()

    def _pass_on(self) -> None:
        while (row := self._rows.get()) is not None:
            if self._error is None:
                try:
                    self._to.write(row)
                except Exception as error:  # For the writer, who is in another thread.
                    self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
