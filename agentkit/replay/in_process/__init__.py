"""Replay in this process's memory: numpy columns, deterministic, saved and restored bit for bit."""

from agentkit.replay.in_process.replay import InProcessReplay, InProcessSampler
from agentkit.replay.in_process.writer import InProcessWriter

__all__ = ["InProcessReplay", "InProcessSampler", "InProcessWriter"]
