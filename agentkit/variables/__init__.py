"""Variables: the learner publishes named, versioned parameters; actors fetch them."""

from agentkit.variables.client import VariableClient
from agentkit.variables.store import VariableStore

__all__ = ["VariableClient", "VariableStore"]
