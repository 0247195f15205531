"""Reverb and TensorFlow, both quiet, and what every call of Reverb's needs: silence and a deadline.

The only file that imports them. Extra: ``reverb``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from agentkit.errors import missing_extra

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reverb
        import tensorflow as tf
        from reverb import pybind
except ImportError as import_error:
    raise missing_extra("dm-reverb", "reverb") from import_error

__all__ = ["BoundedCalls", "pybind", "quiet_stderr", "reverb", "tf"]

_T = TypeVar("_T")


class BoundedCalls:
    """Runs calls in a daemon thread, to stop waiting for one that never returns."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], list, threading.Event] | None] | None = None

    def __call__(self, function: Callable[[], _T], seconds: float) -> _T:
        """Returns or raises what `function` does; TimeoutError after `seconds`."""
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._tasks,), name="reverb-calls", daemon=True).start()
        outcome: list[Any] = []
        done = threading.Event()
        self._tasks.put((function, outcome, done))
        if not done.wait(seconds):
            self._tasks = None  # That thread is stuck; the next call gets another one.
            raise TimeoutError
        value, error = outcome
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Ends the thread, when its call is over."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    @staticmethod
    def _run(tasks: queue.SimpleQueue[Any]) -> None:
        while (task := tasks.get()) is not None:
            function, outcome, done = task
            try:
                outcome.extend([function(), None])
            except BaseException as error:  # handed to the caller
                outcome.extend([None, error])
            done.set()


class _Silence:
    """File descriptor 2, sent nowhere while at least one thread wants it so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._kept: int | None = None

    def enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            sys.stderr.flush()
            try:
                self._kept = os.dup(2)
            except OSError:  # closed
                return
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 2)

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._kept is not None:
                os.dup2(self._kept, 2)
                os.close(self._kept)
                self._kept = None


_SILENCE = _Silence()


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Sends file descriptor 2 nowhere for a moment: Reverb's C++ announces known facts there."""
    _SILENCE.enter()
    try:
        yield
    finally:
        _SILENCE.leave()
