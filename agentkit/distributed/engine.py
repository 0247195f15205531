"""Defines an engine: it starts and kills nodes, and knows nothing of when."""

from __future__ import annotations

from typing import Protocol

from agentkit.distributed.program import Node, Role
from agentkit.distributed.worker import RunAddress


class Running(Protocol):
    """Watches and stops a node that an engine has started."""

    pid: int | None

    def poll(self) -> int | None:
        """Returns its exit code (negative: the signal that killed it); None while it runs."""
        ...

    def terminate(self) -> None:
        """Asks the node to stop."""
        ...

    def kill(self) -> None:
        """Ends the node at once."""
        ...

    def cpu_seconds(self) -> float | None:
        """Returns the processor time that its process has used; None where that cannot be known here."""
        ...


class Engine(Protocol):
    """Runs nodes."""

    store_host: str

    def start(self, node: Node, role: Role, run_address: RunAddress) -> Running:
        """Starts a node."""
        ...

    def close(self) -> None:
        """Frees the engine's resources, after every node has ended."""
        ...
