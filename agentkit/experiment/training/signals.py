"""Stopping on Ctrl-C, SIGTERM and SIGHUP: the first asks for an orderly stop, the second stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType
from typing import Any

from agentkit.child import ECHO_SECONDS, dies_with_parent, set_by_signals

_HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none.
_NUMBERS = [number for number in (signal.SIGINT, signal.SIGTERM, _HANG_UP) if number is not None]


class StopOnSignal:
    """Lets SIGINT, SIGTERM and SIGHUP set `requested`; a second one raises KeyboardInterrupt. A context manager.

    What follows a signal within `ECHO_SECONDS` is its echo and does nothing. A stop that others asked for is no signal:
    the first one that comes while it saves does not end that.

    SIGHUP, of a closed terminal, comes from the shell and from the system, and then SIGTERM may follow: none of these
    counts as a second one. Where it is ignored (``nohup``), it stays ignored.

    In a process that dies with its parent, a job of a sweep, what follows does nothing at any time: where all processes
    of a service are signalled, the parent's own signal comes second, in the middle of saving. Who has no patience
    stops the parent at once.

    In another thread than the main one it does nothing: Python delivers signals to the main thread.

    Attributes:
        signalled: whether a signal has asked, which a long evaluation does not wait for; others may set the event.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        """Takes the event to set, where others wait for it or set it too."""
        self._stop = stop or threading.Event()
        self._previous: dict[int, Any] = {}
        self._closing = contextlib.ExitStack()
        self._hung_up = False
        self._heard_at = 0.0
        self.signalled = False

    @property
    def requested(self) -> bool:
        """Returns True once an orderly stop was asked for."""
        return self.signalled or self._stop.is_set()

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            self._set_stop = self._closing.enter_context(set_by_signals(self._stop))
            for number in _NUMBERS:
                if number != _HANG_UP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signalled and number != _HANG_UP:
            if dies_with_parent():
                return
            if time.monotonic() - self._heard_at < ECHO_SECONDS:
                self._hung_up = False  # A closed terminal's own one: the next is somebody's.
                return
            if not self._hung_up:
                raise KeyboardInterrupt
        self._hung_up, self._heard_at = number == _HANG_UP, time.monotonic()
        self.signalled = True
        self._set_stop()

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._closing.close()
