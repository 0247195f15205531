"""Environments of several agents: agentkit's own, and what makes any of them ready for agents."""
