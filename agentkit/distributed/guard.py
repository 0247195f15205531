"""Ends what the nodes of a program have started, such as simulators, when the program's process is gone.

The kernel kills each node with the process that started it (`worker`), but not a node's children. They are in the
node's process group, and a small process that outlives the program kills those groups.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

_GUARD = """
import os, select, signal, sys
parent, groups, rest = int(sys.argv[1]), set(), b""
while os.getppid() == parent:
    if select.select([0], [], [], 1.0)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """Knows the process groups that are to end with this process, however it ends."""

    def __init__(self, parent: int):
        """Starts it: a process of Python alone, in a session of its own. `parent` is this process."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Adds a process group."""
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        """Forgets a process group that has ended: its number may become another's."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends it. May be called twice."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10.0)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # Killed, or closed: what remains is what there was without it.
            self._process.stdin.write(line.encode())  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
