"""Says why a node ended, and when its restarts are too many: within a while, or in a row and for nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from typing import Any

from agentkit.distributed.program import RestartPolicy
from agentkit.distributed.worker import EXIT_SIGNALLED

FROM_OUTSIDE = (-int(getattr(signal, "SIGKILL", 9)), -int(signal.SIGTERM), EXIT_SIGNALLED)
"""Exit codes of a node that somebody else has ended, or the system, for want of memory."""


def describe_end(name: str, code: int | None, record: Mapping[str, Any] | None) -> str:
    """Returns why a node ended: the error that it recorded, or what its exit code says."""
    if record is not None:
        return f"{name} raised {record['type']}: {record['message']}"
    if code == EXIT_SIGNALLED:
        return f"{name} was told to stop by a signal from elsewhere"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"{name} was killed by {signal.Signals(-code).name}"
    return f"{name} ended with exit code {code}"


class TooManyRestartsError(Exception):
    """Says which limit was reached; empty where no restart is allowed at all."""


class Restarts:
    """Keeps the restarts of one node.

    Attributes:
        number: all of them so far.
    """

    def __init__(self, policy: RestartPolicy):
        """Begins with none."""
        self.number = 0
        self._policy = policy
        self._times: list[float] = []
        self._num_in_vain = 0

    def add(self, now: float, *, progress: bool, from_outside: bool) -> float:
        """Adds a restart; returns when it is due.

        Args:
            now: monotonic seconds.
            progress: the node had come further since the restart before.
            from_outside: it was killed by somebody else, which says nothing of the next time.

        Raises:
            TooManyRestartsError: one more is not allowed.
        """
        policy = self._policy
        self._times = [time for time in self._times if now - time < policy.window_seconds]
        if len(self._times) >= policy.max_restarts:
            said = f"{len(self._times)} restarts in {policy.window_seconds:g} s did not help"
            raise TooManyRestartsError(said if policy.max_restarts else "")
        if progress:
            self._num_in_vain = 0
        elif not from_outside:
            self._num_in_vain += 1
            if self._num_in_vain > policy.max_in_vain:
                raise TooManyRestartsError(f"{policy.max_in_vain} restarts in a row brought no progress")
        self._times.append(now)
        self.number += 1
        return now + policy.delay(len(self._times) - 1)
