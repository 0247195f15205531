"""Turns the signals that end a program into the word to stop, for its supervisor."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

from agentkit.child import ECHO_SECONDS
from agentkit.distributed.run_store import RunStore


@contextlib.contextmanager
def signals_ask_to_stop(store: RunStore) -> Iterator[None]:
    """Stops the program on SIGINT, SIGTERM or SIGHUP, and kills it on a second one.

    Only in the main thread, where signals go; elsewhere it does nothing.

    Raises:
        KeyboardInterrupt: at the second signal.
    """
    previous: dict[int, Any] = {}
    seen: list[float] = []

    def handle(number: int, _frame: Any) -> None:
        if seen:
            # A closed terminal's come from the shell and from the system, whenever they like.
            if number != signal.SIGHUP and time.monotonic() - seen[0] > ECHO_SECONDS:
                raise KeyboardInterrupt
            return
        seen.append(time.monotonic())
        # Not store.stop: its lock may be held by the very code that was interrupted.
        store.commands.put(("stop", {"reason": f"stopped by {signal.Signals(number).name}"}))

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            previous[number] = signal.signal(number, handle)
    except ValueError:
        previous.clear()  # Not the main thread.
    try:
        yield
    finally:
        for restored, handler in previous.items():
            signal.signal(restored, handler)
