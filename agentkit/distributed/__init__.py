"""Programs of many processes: nodes, their supervision and the engines that run them. Nothing here knows RL."""

from agentkit.distributed.address_file import connect_to_run
from agentkit.distributed.context import NodeContext
from agentkit.distributed.program import Handle, Node, Program, RestartPolicy, Role
from agentkit.distributed.run_store import RunStore
from agentkit.distributed.run_store_client import NodeTakenError, RunStoreClient, RunStoreError, WrongRunError
from agentkit.distributed.supervisor import ProgramError, Supervisor

__all__ = [
    "Handle",
    "Node",
    "NodeContext",
    "NodeTakenError",
    "Program",
    "ProgramError",
    "RestartPolicy",
    "Role",
    "RunStore",
    "RunStoreClient",
    "RunStoreError",
    "Supervisor",
    "WrongRunError",
    "connect_to_run",
]
