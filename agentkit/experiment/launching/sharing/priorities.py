"""Tells actors the largest priority that the learner has given: their new items get it.

Reverb's server does not know it, and each process has a client of its own (Schaul et al. 2016, algorithm 1, line 6).
A served replay knows it by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from agentkit.distributed.run_store_client import RunStoreClient, RunStoreError
from agentkit.experiment.launching.sharing.common import STATUS_SECONDS
from agentkit.replay import Prioritized, Replay

TOLD_SECONDS = 0.2
"""How long a run store that is away is waited for: the learner stands still meanwhile."""


class LargestPriorities:
    """Keeps a client's largest priorities and those that the run store knows of one replay node alike."""

    def __init__(self, store: RunStoreClient, endpoint: Mapping[str, Any]):
        """Takes the run store, and the replay node's endpoint."""
        self._store = store
        self._node = str(endpoint.get("node", "replay-0"))
        self._told: dict[str, float] = {}
        self._next = 0.0

    def share(self, replay: Replay) -> None:
        """Tells the store of larger priorities, and takes over larger ones, now and then; of prioritised tables."""
        now = time.monotonic()
        if now < self._next or replay.largest_priorities is None:
            return
        self._next = now + STATUS_SECONDS
        for name, table in replay.tables.items():
            if isinstance(table.sampler, Prioritized):
                self._share_table(replay.largest_priorities, name)

    def _share_table(self, largest: dict[str, float], table: str) -> None:
        key, mine = f"largest_priority/{self._node}/{table}", largest[table]
        if mine > self._told.get(table, 1.0):
            with contextlib.suppress(RunStoreError):  # It is away: the next time will do.
                self._store.put(key, mine, TOLD_SECONDS)
                self._told[table] = mine
        elif (found := self._store.peek(key)) is not None:
            self._told[table] = largest[table] = max(mine, float(found))
