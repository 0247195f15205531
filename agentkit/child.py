"""Ends a process with the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal


def die_with(parent: int) -> None:
    """Lets Linux kill this process when its parent dies, however that dies.

    Args:
        parent: the process id of who started this one; if that is dead already, this process ends at once.
    """
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the line above.
        os._exit(1)
