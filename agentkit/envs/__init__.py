"""Environments: `make` them by name; each simulator has a file of its own and loads when asked for."""

from agentkit.envs.registry import available, make, register

__all__ = ["available", "make", "register"]
