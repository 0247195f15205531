"""What a process owes to the one that started it: its end, and a refusal of what it cannot have from there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from agentkit.errors import ConfigError

_used_by: int | None = None  # The process that has used JAX first, among those that this one was forked from.


def die_with(parent: int) -> None:
    """Lets Linux kill this process when its parent dies, however that dies (decision 19).

    Args:
        parent: the process id of who started this one; if that is dead already, this process ends at once.
    """
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the line above.
        os._exit(1)


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
