"""Variables: the learner publishes named, versioned parameters; actors fetch them.

`VariableStore` serves one process. `SharedMemoryPublisher` and `SharedMemorySource` serve the processes of one machine,
and `agentkit.variables.served` those of several.
"""

from agentkit.variables.background import BackgroundPublisher
from agentkit.variables.client import VariableClient
from agentkit.variables.shared_memory import (
    SharedMemoryPublisher,
    SharedMemorySource,
    remove_shared_memory,
    remove_unused_shared_memory,
)
from agentkit.variables.store import VariableStore

__all__ = [
    "BackgroundPublisher",
    "SharedMemoryPublisher",
    "SharedMemorySource",
    "VariableClient",
    "VariableStore",
    "remove_shared_memory",
    "remove_unused_shared_memory",
]
