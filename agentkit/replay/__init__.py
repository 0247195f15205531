"""Replay: tables of items, written through writers and read through samplers.

`InProcessReplay` keeps everything in numpy in this process; `agentkit.replay.served` has the same in a process of its
own; `ReverbReplay` (extra ``reverb``, loaded only when it is asked for) puts the same tables on a Reverb server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentkit.replay.base import Replay, Sampler, Writer
from agentkit.replay.in_process import InProcessReplay
from agentkit.replay.rate_limiter import Lockstep, MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack
from agentkit.replay.table import (
    Fifo,
    FromInline,
    FromStep,
    Layout,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Select,
    Table,
    Uniform,
    queue_table,
    row_layout,
    with_room,
)

if TYPE_CHECKING:
    from agentkit.replay.reverb.replay import ReverbReplay as ReverbReplay

# Not ReverbReplay: a star import must work without Reverb.
__all__ = [
    "Fifo",
    "FromInline",
    "FromStep",
    "InProcessReplay",
    "Layout",
    "Lifo",
    "Lockstep",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Prioritized",
    "Queue",
    "RateLimiter",
    "Replay",
    "SampleToInsertRatio",
    "Sampler",
    "Select",
    "Stack",
    "Table",
    "Uniform",
    "Writer",
    "queue_table",
    "row_layout",
    "with_room",
]


def __getattr__(name: str) -> Any:
    """Loads `ReverbReplay`, and with it Reverb and TensorFlow, when it is first asked for."""
    if name == "ReverbReplay":
        from agentkit.replay.reverb.replay import ReverbReplay

        return ReverbReplay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
