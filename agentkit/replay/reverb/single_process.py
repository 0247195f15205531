"""Reverb for one process, whose environment and learner take turns: the rate limits are kept here, by counting.

Extra: ``reverb``. A limit that the server keeps puts its delays into every turn: an item must have arrived before
what is due for it is drawn, and that must have come back before the learner goes on. Where one process writes and
samples, it knows itself what was inserted and handed out. So the server limits nothing (but the least size), a
stream draws a few batches ahead of the learner, and an update is due after the same inserts as with in-process
replay, whatever is still on its way (decision 12).
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tree

from agentkit.errors import CheckpointError, ReplayClosedError
from agentkit.nests import make_builder
from agentkit.replay.base import Sampler, check_timeout, never_due
from agentkit.replay.rate_limiter import MinSize
from agentkit.replay.reverb import checkpoint
from agentkit.replay.reverb.library import sampling
from agentkit.replay.reverb.replay import ReverbReplay
from agentkit.replay.reverb.sampler import Piece, as_batch, cut, join
from agentkit.replay.reverb.streams import make_pieces
from agentkit.replay.reverb.tables import make_table
from agentkit.replay.table import Table
from agentkit.types import DrawnBatch, TableInfo

NUM_PREFETCHED = 1
"""Batches that are put together in advance, beside what is in flight (`streams.IN_FLIGHT`)."""

POLL_SECONDS = 0.001
"""How often a thread looks that must wait for another one's turn."""


class TableCounters:
    """Counts the items into and out of one table, and keeps its rate limit. Safe to use from several threads."""

    def __init__(self, table: Table):
        """Of an empty table."""
        self._table = table
        self._lock = threading.Lock()
        self.reset()

    def reset(self, size: int = 0, inserted: int = 0, sampled: int = 0) -> None:
        """Sets the counters."""
        with self._lock:
            # Items that are gone, as a server counts them when it is restored.
            self._num_removed_before = inserted - size
            self._inserted = inserted
            self.sampled = sampled

    @property
    def _size(self) -> int:
        return min(self._inserted - self._num_removed_before, self._table.max_size)

    def can_insert(self, num_items: int) -> bool:
        """Returns whether the rate limit lets so many items in."""
        return self._table.rate_limiter.can_insert(
            num_items, size=self._size, inserted=self._inserted, sampled=self.sampled
        )

    def can_sample(self, num_items: int) -> bool:
        """Returns whether the rate limit lets so many items out."""
        return self._table.rate_limiter.can_sample(
            num_items, size=self._size, inserted=self._inserted, sampled=self.sampled
        )

    def insert(self) -> None:
        """Counts an item, whatever the limit says."""
        with self._lock:
            self._inserted += 1

    def try_insert(self) -> bool:
        """Counts an item, if it may be inserted."""
        with self._lock:
            if not self.can_insert(1):
                return False
            self._inserted += 1
            return True

    def try_sample(self, num_items: int) -> bool:
        """Counts samples, if they may be drawn."""
        with self._lock:
            if not self.can_sample(num_items):
                return False
            self.sampled += num_items
            return True

    def give_back(self, num_items: int) -> None:
        """Takes back samples that were counted and not handed out."""
        with self._lock:
            self.sampled -= num_items

    def info(self) -> TableInfo:
        """Returns the counters; the items that a writer has on their way are counted in."""
        table = self._table
        return TableInfo(table.name, self._size, table.max_size, self._inserted, self.sampled)


class SingleProcessSampler(Sampler):
    """Iterates over the batches of a stream, in the caller's thread."""

    def __init__(
        self,
        table: Table,
        batch_size: int,
        counters: TableCounters,
        *,
        make_pieces: Callable[[], Iterator[Piece]],
        why_late: Callable[[float], Exception],
        timeout: float,
        writing_thread: int | None = None,
    ):
        """Makes a `SingleProcessSampler`; draws nothing yet.

        Args:
            table: sampled.
            batch_size: B.
            counters: says when a batch is due.
            make_pieces: sends what writers hold, and opens a stream of pieces; it ends when the server has too few
                items for a while.
            why_late: makes the error for a wait of this many seconds.
            timeout: seconds.
            writing_thread: whose draw is refused where it is not due, since nobody else inserts; None where others do.
        """
        self._table = table
        self._batch_size = batch_size
        self._counters = counters
        self._make_pieces = make_pieces
        self._why_late = why_late
        self._timeout = timeout
        self._writing_thread = writing_thread
        self._build = make_builder(tree.map_structure(lambda _: 0, table.layout.data))
        self._pieces: Iterator[Piece] | None = None
        self._held: Piece | None = None
        self._closed = False
        self._fetching = threading.Lock()

    def ready(self) -> bool:
        """Implements `Sampler.ready`."""
        return not self._closed and self._counters.can_sample(self._batch_size)

    def __next__(self) -> DrawnBatch:
        """See `Sampler`."""
        deadline = time.monotonic() + self._timeout
        while not self._counters.try_sample(self._batch_size):
            self._check_open()
            if self._writing_thread == threading.get_ident():
                raise never_due(self._table.name, self._batch_size)
            if time.monotonic() > deadline:
                raise self._why_late(self._timeout)
            time.sleep(POLL_SECONDS)
        try:
            with self._fetching:
                return as_batch(self._fetch(deadline), self._build)
        except BaseException:
            self._counters.give_back(self._batch_size)
            raise

    def _fetch(self, deadline: float) -> Piece:
        held, self._held = self._held, None
        while held is None or len(held[0]) < self._batch_size:
            self._check_open()
            if self._pieces is None:
                self._pieces = self._make_pieces()
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self._check_open()
                raise ReplayClosedError(f"Sampling table {self._table.name!r} failed for good: {error}") from error
            if piece is not None:
                held = join(held, piece)
                continue
            self._pieces = None
            if time.monotonic() > deadline:
                self._held = held
                raise self._why_late(self._timeout)
        batch, self._held = cut(held, self._batch_size)
        return batch

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayClosedError(f"The sampler of table {self._table.name!r}, or its replay, is closed.")

    def close(self) -> None:
        """Implements `Sampler.close`. A thread that fetches ends its own stream."""
        self._closed = True
        if self._fetching.acquire(timeout=1.0):
            self._pieces = self._held = None
            self._fetching.release()


class SingleProcessReverbReplay(ReverbReplay):
    """Adapts `ReverbReplay` to a process that writes and samples in turns; see the top of this file.

    `TableInfo` counts what was created and handed out here. What a stream drew ahead is counted nowhere: it is up to
    `streams.IN_FLIGHT` items for each of its workers and two batches, drawn by the priorities of that moment.
    A table whose items go after some samples (a queue) is as in `ReverbReplay`: its server keeps the limit, and
    nothing is drawn ahead.
    """

    _server_limits = False  # One that loads what a server with limits wrote keeps them: twice, to the same effect.

    def __init__(self, tables: Any, *, in_turns: bool = False, **settings: Any):
        """As `ReverbReplay`, with a server of its own; `in_turns` as for `InProcessReplay`.

        Raises:
            TypeError: for ``address`` or ``draw_ahead``.
        """
        if refused := {"address", "draw_ahead"} & settings.keys():
            raise TypeError(f"Replay in turns has a server of its own and always draws ahead; found {sorted(refused)}.")
        self._counters: dict[str, TableCounters] = {}
        super().__init__(tables, **settings)
        self._counters = {
            name: TableCounters(table) for name, table in self.tables.items() if table.max_times_sampled == 0
        }
        self._in_turns = in_turns
        self._admit = self._count_in if in_turns else self._wait_for_room

    def _make_table(self, table: Table) -> Any:
        if table.max_times_sampled == 0:
            table = dataclasses.replace(table, rate_limiter=MinSize(table.rate_limiter.min_size_to_sample))
        return make_table(table)

    def _count_in(self, table: str, timeout: float) -> None:
        if (counters := self._counters.get(table)) is not None:
            counters.insert()

    def _wait_for_room(self, table: str, timeout: float) -> None:
        """Counts an item of a writer in, when the rate limit lets it in."""
        counters = self._counters.get(table)
        if counters is None or counters.try_insert():
            return
        deadline = time.monotonic() + timeout
        while not counters.try_insert():
            if self._closed:
                raise ReplayClosedError("The replay was closed while a writer waited for it.")
            if time.monotonic() > deadline:
                raise self._why_insert_late(repr(table), timeout)
            time.sleep(POLL_SECONDS)

    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> Sampler:
        """Implements `Replay.sampler`."""
        counters = self._counters.get(table)
        if counters is None:
            return super().sampler(table, batch_size, timeout=timeout)
        self._check_open()
        description, size = self.table(table), int(batch_size)
        description.check_batch(batch_size)
        sampling()  # Not in the thread that asks for a batch, which may be another.

        def pieces() -> Iterator[Piece]:
            self._send_all()
            return make_pieces(self.address, description, size, True, NUM_PREFETCHED)

        seconds = check_timeout(timeout, self.default_timeout)
        sampler = SingleProcessSampler(
            description,
            size,
            counters,
            make_pieces=pieces,
            why_late=lambda seconds: self._why_sample_late(description, seconds),
            timeout=seconds,
            writing_thread=threading.get_ident() if self._in_turns else None,
        )
        self._samplers.add(sampler)
        return sampler

    def _send_all(self) -> None:
        for writer in list(self._writers):
            writer.try_confirm()

    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """Implements `Replay.can_insert`."""
        counters = self._counters.get(table)
        if counters is None:
            return super().can_insert(table, num_items)
        self._check_open()
        return counters.can_insert(num_items)

    def info(self, table: str) -> TableInfo:
        """Implements `Replay.info`; counts items that were created and handed out."""
        counters = self._counters.get(table)
        if counters is None:
            return super().info(table)
        self._check_open()
        return counters.info()

    def count_as_sampled(self, table: str, num_sampled: int) -> None:
        """Implements `Replay.count_as_sampled`."""
        counters = self._counters.get(table)
        if counters is None:
            super().count_as_sampled(table, num_sampled)
            return
        self._check_open()
        counters.sampled = int(num_sampled)

    def reset(self, table: str) -> None:
        """Implements `Replay.reset`."""
        self._send_all()  # else they would come back
        super().reset(table)
        if table in self._counters:
            self._counters[table].reset()

    def _handed_out(self) -> Mapping[str, int]:
        return {name: counters.sampled for name, counters in self._counters.items()}

    def restore(self, directory: pathlib.Path) -> None:
        """Implements `Replay.restore`."""
        try:
            super().restore(directory)
        except CheckpointError:
            self._recount({})
            raise
        self._recount(checkpoint.handed_out(directory))

    def _recount(self, handed_out: Mapping[str, int]) -> None:
        """Takes the counters from the server, and what was `handed_out` from a checkpoint that knows."""
        for name, counters in self._counters.items():
            info = self._remote_info(name)
            counters.reset(info.size, info.num_inserted, handed_out.get(name, info.num_sampled))
