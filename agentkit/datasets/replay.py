"""Batches out of replay: stacked for a scan, prefetched, and moved to a device."""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tree

from agentkit.core import BatchPlan
from agentkit.errors import ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.replay.base import Replay, Sampler
from agentkit.types import ReplaySample


class ReplayDataset:
    """An endless iterator of batches of one table; deterministic where its sampler is.

    With K = `plan.num_updates` > 1, leaves are ``[K, B, ...]`` for one `lax.scan`, else ``[B, ...]``.
    """

    def __init__(self, replay: Replay, plan: BatchPlan, *, timeout: float | None = None):
        """Makes one.

        Args:
            replay: where to sample.
            plan: table, batch size and number of stacked batches.
            timeout: seconds that `__next__` waits for data; None for the replay's default.
        """
        self._plan = plan
        self._replay = replay
        self._limiter = replay.table(plan.table).rate_limiter
        self._num_items = plan.batch_size * plan.num_updates
        # What was drawn before this dataset, and what this dataset has handed out since.
        self._num_taken = replay.info(plan.table).num_sampled
        self._sampler: Sampler = replay.sampler(plan.table, self._num_items, timeout=timeout)

    def ready(self) -> bool:
        """True if the rate limit lets the next batch through.

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
            size += info.num_sampled - self._num_taken
        return self._limiter.can_sample(
            self._num_items, size=size, inserted=info.num_inserted, sampled=self._num_taken
        )

    def fetched(self) -> bool:
        """Returns True if the next batch is here, so that `__next__` does not wait for it."""
        return self._sampler.ready()

    def __iter__(self) -> Iterator[ReplaySample]:
        return self

    def __next__(self) -> ReplaySample:
        """The next batch.

        Raises:
            ReplayTimeoutError: none within the timeout.
            ReplayClosedError: replay was closed.
        """
        sample = next(self._sampler)
        self._num_taken += self._num_items
        plan = self._plan
        if plan.num_updates == 1:
            return sample
        return tree.map_structure(lambda x: x.reshape(plan.num_updates, plan.batch_size, *x.shape[1:]), sample)

    def close(self) -> None:
        """Stops sampling."""
        self._sampler.close()


class Prefetch:
    """Draws ahead in a thread, so that sampling and the transfer overlap with the update.

    What is drawn ahead is older, and a restart loses it: not for bit-for-bit resumable runs.
    """

    def __init__(
        self,
        dataset: ReplayDataset,
        *,
        size: int = 2,
        transfer: Callable[[ReplaySample], ReplaySample] | None = None,
        timeout: float = 60.0,
    ):
        """Makes one.

        Args:
            dataset: what to draw from; closed with this.
            size: batches to hold ready.
            transfer: applied in the thread, e.g. `to_device`.
            timeout: seconds that `__next__` waits.
        """
        if size < 1:
            raise ConfigError(f"Prefetch holds at least 1 batch, found size {size}.")
        self._dataset = dataset
        self._transfer = transfer
        self._timeout = timeout
        self._queue: queue.Queue[ReplaySample | BaseException] = queue.Queue(size)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentkit-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                item: Any = next(self._dataset)
                item = item if self._transfer is None else self._transfer(item)
            except ReplayTimeoutError:
                continue  # The consumer has a deadline of its own.
            except BaseException as error:  # Raised again where it is seen, in __next__.
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    def ready(self) -> bool:
        """True if a batch is waiting."""
        return not self._queue.empty()

    def __iter__(self) -> Iterator[ReplaySample]:
        return self

    def __next__(self) -> ReplaySample:
        """The next batch; raises what the thread met."""
        if self._stop.is_set():
            raise ReplayClosedError("This dataset was closed.")
        try:
            item = self._queue.get(timeout=self._timeout)
        except queue.Empty:
            raise ReplayTimeoutError(
                f"No batch arrived within {self._timeout:g} s. Are actors inserting, and does the table's rate "
                "limit let samples through?"
            ) from None
        if isinstance(item, BaseException):
            self._stop.set()
            raise item
        return item

    def close(self) -> None:
        """Stops the thread, then the dataset."""
        self._stop.set()
        self._dataset.close()
        self._thread.join(timeout=5.0)


def to_device(device: Any = None) -> Callable[[ReplaySample], ReplaySample]:
    """A `transfer` that puts the data (not the uint64 keys) on a JAX device or sharding."""
    import jax  # Not at import time: datasets load without it.

    def transfer(sample: ReplaySample) -> ReplaySample:
        info = sample.info
        placed = jax.device_put((info._replace(key=()), sample.data), device)
        return ReplaySample(placed[0]._replace(key=info.key), placed[1])

    return transfer


class FixedDataset:
    """Batches from a list, for tests and debugging; cycles for ever."""

    def __init__(self, batches: list[ReplaySample]):
        """Takes the batches to hand out in turn."""
        self._batches = collections.deque(batches)

    def ready(self) -> bool:
        """Always True."""
        return True

    def __iter__(self) -> Iterator[ReplaySample]:
        return self

    def __next__(self) -> ReplaySample:
        """The next batch."""
        self._batches.rotate(-1)
        return self._batches[-1]

    def close(self) -> None:
        """Nothing to free."""
