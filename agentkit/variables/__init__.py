"""Variables: the learner publishes named, versioned parameters; actors fetch them.

`VariableStore` serves one process. `SharedMemoryPublisher` and `SharedMemorySource` serve the processes of one machine;
`agentkit.variables.served` serves several machines, and so do `ReverbPublisher` and `ReverbSource` (extra ``reverb``,
loaded only when asked for).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentkit.variables.background import BackgroundPublisher
from agentkit.variables.client import VariableClient
from agentkit.variables.shared_memory import (
    SharedMemoryPublisher,
    SharedMemorySource,
    remove_shared_memory,
    remove_unused_shared_memory,
)
from agentkit.variables.store import VariableStore

if TYPE_CHECKING:
    from agentkit.variables.reverb import ReverbPublisher as ReverbPublisher
    from agentkit.variables.reverb import ReverbSource as ReverbSource

# Not those on Reverb: a star import must work without it.
__all__ = [
    "BackgroundPublisher",
    "SharedMemoryPublisher",
    "SharedMemorySource",
    "VariableClient",
    "VariableStore",
    "remove_shared_memory",
    "remove_unused_shared_memory",
]


def __getattr__(name: str) -> Any:
    """Loads what needs Reverb, and with it TensorFlow, when it is first asked for."""
    if name in ("ReverbPublisher", "ReverbSource"):
        from agentkit.variables import reverb

        return getattr(reverb, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
