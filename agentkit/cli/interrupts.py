"""Ends a command at once on Ctrl-C while it starts, without an exception, which what is being loaded could not bear.

A KeyboardInterrupt that arises while JAX and its like are imported or begin is lost in a callback, or takes the process
down with a segmentation fault. Before a training's first step there is nothing to save, so the process just ends. A
training then hears signals by handlers of its own, and a command that has something to clear up is `interruptible`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

MESSAGE = "agentkit: stopped at once by Ctrl-C."


def is_command() -> bool:
    """Returns whether this process is the command ``agentkit``, and not a program that imports its code."""
    if sys.argv[:1] == ["-m"]:  # While Python looks for the module's __main__.
        return sys.orig_argv[sys.orig_argv.index("-m") :][1:2] in (["agentkit"], ["agentkit.cli"])
    return os.path.basename(sys.argv[0]) in ("agentkit", "agentkit.exe") if sys.argv else False


def end_at_once() -> None:
    """Lets Ctrl-C end this process from now on; where it is ignored, as of ``&`` in a script, it stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{MESSAGE}\n".encode())  # sys.stderr may be in use by the very code that was interrupted.
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt again, for code that clears up after itself and loads nothing more."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)
