"""Environments: `make` them by name; each simulator has a file of its own and loads when asked for."""

from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.envs.prefixes import available, register
from agentkit.envs.registry import make

__all__ = ["available", "make", "make_multi_agent", "register"]
