"""Programs of many processes: nodes, their supervision and the engines that run them. Nothing here knows RL."""

from agentkit.distributed.board import Board
from agentkit.distributed.board_client import BoardClient, BoardError, WrongRunError
from agentkit.distributed.context import NodeContext
from agentkit.distributed.program import Handle, Node, Program, RestartPolicy, Role
from agentkit.distributed.supervisor import ProgramError, Supervisor, connect_to_run

__all__ = [
    "Board",
    "BoardClient",
    "BoardError",
    "Handle",
    "Node",
    "NodeContext",
    "Program",
    "ProgramError",
    "RestartPolicy",
    "Role",
    "Supervisor",
    "WrongRunError",
    "connect_to_run",
]
