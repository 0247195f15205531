"""The in-process replay in a node of its own, for writers and samplers in other processes (over `agentkit.wire`)."""

from agentkit.replay.served.client import ServedReplay
from agentkit.replay.served.server import ReplayServer

__all__ = ["ReplayServer", "ServedReplay"]
