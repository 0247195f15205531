"""Holds what a supervisor knows of one node."""

from __future__ import annotations

import dataclasses

from agentkit.distributed.engine import Running
from agentkit.distributed.program import Node, Role
from agentkit.distributed.pulse import Pulse
from agentkit.distributed.restarts import Restarts


@dataclasses.dataclass
class Watched:
    """Holds a node, as the supervisor sees it: what runs now, since when, and how far it has come."""

    node: Node
    role: Role
    state: str = "waiting"
    running: Running | None = None
    incarnation: int = -1
    started: float = 0.0
    start_at: float = 0.0
    kill_at: float | None = None
    leaving: bool = False
    counted: int = 0
    pulse: Pulse = dataclasses.field(default_factory=Pulse)

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.role.restart)
