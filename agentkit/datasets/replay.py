"""Draws batches out of replay, stacked for a scan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tree

from agentkit.core import BatchPlan
from agentkit.replay.base import Replay, Sampler
from agentkit.types import DrawnBatch


class ReplayDataset:
    """Draws batches of one table for ever; deterministic where its sampler is.

    With K = `plan.num_updates` > 1, leaves are ``[K, B, ...]`` for one `lax.scan`, else ``[B, ...]``. Where the plan
    has a second table, each batch ends with its share of items from there; their keys are of that table.

    Attributes:
        num_taken: items of the table that were drawn before this dataset, and those that it has handed out since.
    """

    def __init__(self, replay: Replay, plan: BatchPlan, *, timeout: float | None = None):
        """Makes a `ReplayDataset`.

        Args:
            replay: where to sample.
            plan: table, batch size and number of stacked batches.
            timeout: seconds that `__next__` waits for data; None for the replay's default.
        """
        self._plan = plan
        self._replay = replay
        self._limiter = replay.table(plan.table).rate_limiter
        self._num_items = plan.num_own * plan.num_updates
        self.num_taken = replay.info(plan.table).num_sampled
        self._sampler: Sampler = replay.sampler(plan.table, self._num_items, timeout=timeout)
        self._prior: Sampler | None = None
        if plan.prior_table is not None:
            self._prior = replay.sampler(plan.prior_table, plan.num_prior * plan.num_updates, timeout=timeout)

    def ready(self) -> bool:
        """Returns whether the rate limit lets the next batch through.

        A sampler that draws ahead (Reverb's) is not asked what it drew: what counts is what was handed
        out. So learning is due after the same inserts on every replay, and `__next__` waits for a batch
        that is due and still on its way.
        """
        if self._sampler.ready():
            return True
        if self._replay.resumable:  # Draws when asked, so that it knows.
            return False
        info = self._replay.info(self._plan.table)
        size = info.size
        if self._replay.table(self._plan.table).max_times_sampled == 1:  # What was drawn ahead is gone there.
            size += info.num_sampled - self.num_taken
        return self._limiter.can_sample(self._num_items, size=size, inserted=info.num_inserted, sampled=self.num_taken)

    def fetched(self) -> bool:
        """Returns True if the next batch is here, so that `__next__` does not wait for it."""
        return self._sampler.ready()

    def __iter__(self) -> Iterator[DrawnBatch]:
        return self

    def __next__(self) -> DrawnBatch:
        """Returns the next batch.

        Raises:
            ReplayTimeoutError: none within the timeout.
            ReplayClosedError: replay was closed.
        """
        batch = next(self._sampler)
        self.num_taken += self._num_items
        plan = self._plan
        if self._prior is not None:
            return self._joined(batch, next(self._prior))
        if plan.num_updates == 1:
            return batch
        return tree.map_structure(lambda x: x.reshape(plan.num_updates, plan.batch_size, *x.shape[1:]), batch)

    def _joined(self, own: DrawnBatch, prior: DrawnBatch) -> DrawnBatch:
        """Returns batches of which each has its part of both."""
        num_updates = self._plan.num_updates

        def join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            if num_updates == 1:
                return np.concatenate([one, other])
            return np.concatenate([x.reshape(num_updates, -1, *x.shape[1:]) for x in (one, other)], axis=1)

        return tree.map_structure(join, own, prior)

    def close(self) -> None:
        """Stops sampling."""
        self._sampler.close()
        if self._prior is not None:
            self._prior.close()
