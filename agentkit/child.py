"""What a process owes to the one that started it: its end, an ear for signals, and a refusal of what it cannot have."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from agentkit.errors import ConfigError

ECHO_SECONDS = 0.5
"""A second signal that follows this soon is the first one's echo: some senders (`timeout`, schedulers) signal a process
and its group, and a shell's trap what the scheduler signals, too."""

_used_by: int | None = None  # The process that has used JAX first, among those that this one was forked from.
_dying: int | None = None  # The process that the system kills with its parent; a fork of it it does not.


def whom_to_die_with() -> int:
    """Returns the process id that a new process is to give to `die_with`; 0 if it only hears that nobody asks any more.

    Linux means the parent's thread: a child that another thread than the main one starts would end with that thread.
    """
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def environment_of_child() -> dict[str, str]:
    """Returns this process's variables, with its module path, and with JAX kept off accelerators' memory."""
    here = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": here, "JAX_PLATFORMS": "cpu"}


def die_with(parent: int) -> None:
    """Lets Linux kill this process when its parent dies, however that dies (decision 19).

    Args:
        parent: the process id of who started this one; if that is dead already, this process ends at once.
    """
    global _dying
    with contextlib.suppress(OSError, AttributeError):  # Other systems have no such call.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        _dying = os.getpid()
    if os.getppid() != parent:  # It died before the lines above.
        os._exit(1)


def dies_with_parent() -> bool:
    """Returns whether `die_with` has tied this process to its parent; never where the system cannot."""
    return _dying == os.getpid()


@contextlib.contextmanager
def set_by_signals(event: threading.Event) -> Iterator[Callable[[], None]]:
    """Yields a function by which a signal handler sets an event, as a thread of its own does then.

    `Event.set` takes a lock that the code which the signal has interrupted may hold, in `Event.wait`: they would wait
    for each other for ever. A `queue.SimpleQueue` can be filled wherever the interpreter stands.
    """
    words: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def pass_on() -> None:
        while words.get():
            event.set()

    thread = threading.Thread(target=pass_on, name="signals", daemon=True)
    thread.start()
    try:
        yield lambda: words.put(True)
    finally:
        words.put(False)
        thread.join()


def check_not_forked() -> None:
    """Refuses to use JAX in a process that was forked from one which had used it; to be called before each use.

    JAX's threads do not live on in a fork, and what they were to do is waited for, without end.

    Raises:
        ConfigError: it says how to start the process instead.
    """
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
    elif _used_by != os.getpid():
        raise ConfigError(
            f"This process {os.getpid()} was forked from process {_used_by}, which had used JAX: JAX's threads are "
            "missing here, and it would hang. Start it as a new interpreter, with "
            'multiprocessing.get_context("spawn"), or fork before the first training or policy.'
        )
