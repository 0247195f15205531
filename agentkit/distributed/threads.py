"""The engine of threads in this process: for a debugger's breakpoint, not for speed.

A thread cannot be killed: a node that does not return when it is told to stop is left behind.
"""

from __future__ import annotations

import threading
from typing import final

from agentkit.distributed.program import Node, Role
from agentkit.distributed.worker import Launch, run_node


@final
class RunningThread:
    """A node's thread."""

    def __init__(self, node: Node, launch: Launch):
        """Starts it."""
        self.pid: int | None = None
        self._stop = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(node, launch), name=node.name, daemon=True)
        self._thread.start()

    def _run(self, node: Node, launch: Launch) -> None:
        self._code = run_node(node, launch, self._stop)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._code

    def terminate(self) -> None:
        """Asks it to stop."""
        self._stop.set()

    def kill(self) -> None:
        """Asks it to stop, and takes it for dead."""
        self._stop.set()
        if self._code is None:
            self._code = -9


@final
class ThreadEngine:
    """Runs nodes as threads of this process.

    Attributes:
        board_host: where the board listens: this machine alone.
    """

    board_host = "127.0.0.1"

    def start(self, node: Node, role: Role, launch: Launch) -> RunningThread:
        """Starts a node; its role's resources and variables have no effect."""
        return RunningThread(node, launch)

    def close(self) -> None:
        """Nothing to free."""
