"""Publishing beside the learner, which goes on with its next step meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from agentkit.errors import ConfigError
from agentkit.types import Nest


class BackgroundPublisher:
    """Hands the newest parameters to another publisher, in a thread. Thread-safe.

    The copy from the device and the transport then take no time of the learner's. Versions that come
    while one is under way replace each other: only the newest goes next. What is published must not be
    changed (or donated) afterwards.
    """

    def __init__(self, publisher: Any, *, min_seconds: float = 0.0):
        """Starts the thread.

        Args:
            publisher: has `publish(version, variables)` and, where it wants to be closed, `close()`.
            min_seconds: between the beginnings of two publications.
        """
        if not min_seconds >= 0:
            raise ConfigError(f"min_seconds must be at least 0, found {min_seconds}.")
        self._publisher = publisher
        self._min_seconds = min_seconds
        self._changed = threading.Condition()
        self._next: tuple[int, Mapping[str, Nest]] | None = None
        self._error: BaseException | None = None
        self._closed = self._publishing = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the next to be published; returns at once.

        Raises:
            Exception: what an earlier publication raised; the thread has ended with it.
            ConfigError: this publisher is closed.
        """
        with self._changed:
            self._raise_error()
            if self._closed:
                raise ConfigError("This publisher is closed. Make a new one.")
            self._next = (version, dict(variables))
            self._changed.notify_all()

    def flush(self, timeout: float = 60.0) -> None:
        """Waits until what was given to `publish` is published, for `timeout` seconds at most.

        Raises:
            Exception: what a publication raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not (self._next or self._publishing), timeout)
            self._raise_error()

    def close(self, timeout: float = 10.0) -> None:
        """Publishes waiting parameters, ends the thread and closes the other publisher. May be called twice.

        Args:
            timeout: seconds to wait for the last publication; then it is left behind.

        Raises:
            Exception: what a publication raised.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        close = getattr(self._publisher, "close", None)
        if close is not None:
            close()
        with self._changed:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._closed = True
            raise error

    def _run(self) -> None:
        begin = -self._min_seconds
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closed)
                # A closing publisher does not wait: the last version is what others go on with.
                rest = begin + self._min_seconds - time.monotonic()
                self._changed.wait_for(lambda: self._closed, max(0.0, rest))
                if self._next is None:
                    return
                version, variables = self._next
                self._next, self._publishing = None, True
            begin, failed = time.monotonic(), None
            try:
                self._publisher.publish(version, variables)
            except BaseException as error:  # handed to the learner
                failed = error
            with self._changed:
                self._error, self._publishing = failed, False
                self._changed.notify_all()
            if failed is not None:
                return
