"""Judges whether a node lives: by its heartbeats and, where it is silent, by the processor time that it uses.

Heartbeats come from a thread of Python's, and a call that keeps the interpreter for itself (of a C extension, or of
Reverb while it restores a table) silences them. A process that works meanwhile is not dead; one that was stopped, or
whose machine is gone, uses no time.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from agentkit.distributed.engine import Running
from agentkit.distributed.program import Role

_LOOK_SECONDS = 1.0
"""After this much silence a node's processor time is looked at."""


def cpu_seconds(pid: int) -> float | None:
    """Returns the processor time that a process of this machine has used; None where the system does not say."""
    try:
        words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")  # In user mode, and for it in the kernel.
    except (OSError, ValueError, IndexError):
        return None


class Pulse:
    """Watches one incarnation of a node."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._used: float | None = None
        self._used_at = 0.0
        self._call: Any = None
        self._patient_until = 0.0

    def is_busy(self, call: Any, now: float) -> bool:
        """Returns whether the node is in a call that it announced (`NodeContext.busy`), and may be so still.

        Args:
            call: what the node says of it; None for nothing.
            now: monotonic seconds.
        """
        if call != self._call:
            self._call = call
            self._patient_until = now + float(call["seconds"]) if call else 0.0
        return now < self._patient_until

    def stillness(self, silence: float, running: Running, now: float) -> float:
        """Returns for how long the node has neither been heard nor used processor time."""
        if silence < _LOOK_SECONDS:
            self._used = None
            return silence
        used = running.cpu_seconds()
        if used is None:
            return silence
        if self._used is None:
            self._used_at = now - silence
        elif used > self._used:
            self._used_at = now
        self._used = used
        return min(silence, now - self._used_at)


def diagnose(role: Role, ready: bool, silence: float, still: float, idle: float) -> str | None:
    """Returns why a node is taken for dead; None where it is not.

    Args:
        role: its limits.
        ready: else it has a limit of its own for starting.
        silence: seconds since its last heartbeat.
        still: seconds for which it has not been heard, nor used processor time.
        idle: seconds that its main loop was idle at the last heartbeat.
    """
    if still > role.heartbeat_seconds:
        return f"gave no sign of life for {still:.0f} s (stopped, or its machine is gone)"
    if ready and silence > max(role.held_seconds, role.heartbeat_seconds):
        return f"was not heard for {silence:.0f} s though it works (a call, as of its environment, holds Python)"
    if ready and idle > role.idle_seconds:
        return f"made no progress for {idle:.0f} s (its main loop hangs)"
    return None
