"""The engine of threads in this process: for a debugger's breakpoint, not for speed.

A thread cannot be killed: a node that does not return when it is told to stop is left behind.
"""

from __future__ import annotations

import threading
from typing import final

from agentkit.distributed.program import Node, Role
from agentkit.distributed.worker import RunAddress, run_node


@final
class RunningThread:
    """Watches and stops a node's thread."""

    def __init__(self, node: Node, run_address: RunAddress):
        """Starts it."""
        self.pid: int | None = None
        self._stop = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(node, run_address), name=node.name, daemon=True)
        self._thread.start()

    def _run(self, node: Node, run_address: RunAddress) -> None:
        self._code = run_node(node, run_address, self._stop)

    def poll(self) -> int | None:
        """Returns its exit code; None while it runs."""
        return self._code

    def terminate(self) -> None:
        """Asks the node to stop."""
        self._stop.set()

    def kill(self) -> None:
        """Asks the node to stop, and takes it for dead."""
        self._stop.set()
        if self._code is None:
            self._code = -9

    def cpu_seconds(self) -> float | None:
        """Returns None: a thread's share of this process is not known."""
        return None


@final
class ThreadEngine:
    """Runs nodes as threads of this process.

    Attributes:
        store_host: where the run store listens: this machine alone.
    """

    store_host = "127.0.0.1"

    def start(self, node: Node, role: Role, run_address: RunAddress) -> RunningThread:
        """Starts a node; its role's resources and variables have no effect."""
        return RunningThread(node, run_address)

    def close(self) -> None:
        """Frees nothing."""
