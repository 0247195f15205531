"""Replay in this process: numpy columns, steps and frames stored once, items as row numbers, no server.

Sampling is a gather of rows (`ItemTable.sample`); steps live in a `StepStore`, which all tables of
one step structure share. One lock guards everything: writers and samplers may be used from several
threads, each writer from one at a time.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from agentkit.errors import CheckpointError, ReplayClosedError
from agentkit.files import MOST_TEXT, read_json
from agentkit.replay import base
from agentkit.replay.in_process.shared import STATE_FILE, SharedTables
from agentkit.replay.in_process.writer import InProcessWriter
from agentkit.replay.table import Table
from agentkit.types import DrawnBatch, Nest, Seed, TableInfo


class InProcessReplay(base.Replay):
    """Keeps tables in this process's memory.

    Sampling and inserting are deterministic: the same seed and the same calls give the same batches,
    bit for bit, also across `save` and `restore` (`resumable`). Within one batch, repeated items
    report the `times_sampled` that they have after the batch, unless `max_times_sampled` limits it.

    Args:
        tables: descriptions with different names.
        seed: of samplers and removers.
        default_timeout: seconds that writers and samplers wait unless they were given another.
        in_turns: whether one thread writes and draws, and asks `can_insert` before it writes. What it writes then,
            many environments' last steps or a long episode, does not wait for room that only it could make. Queues
            stay as they are: what overflowed would be lost. A draw that is not due is refused at once in the thread
            that made the sampler.

    Attributes:
        shared: the contents, for writers, samplers and servers.
        in_turns: as given; for writers that are made from now on.

    Raises:
        ConfigError: no tables, two of one name, or a timeout that is no deadline.
    """

    resumable = True

    def __init__(
        self, tables: Sequence[Table], seed: Seed = 0, default_timeout: float = 60.0, *, in_turns: bool = False
    ):
        self.tables: Mapping[str, Table] = base.index_tables(tables)
        self.default_timeout = base.check_timeout(default_timeout, default_timeout)
        self.shared = SharedTables(self.tables, seed)
        self.in_turns = in_turns

    def writer(self, history: int, *, timeout: float | None = None) -> InProcessWriter:
        """Makes a writer; see `Replay.writer`."""
        history = base.check_history(history)
        seconds = base.check_timeout(timeout, self.default_timeout)
        with self.shared.lock:
            self.shared.check_open()
            self.shared.release_abandoned()
            return InProcessWriter(self.shared, history, seconds, in_turns=self.in_turns)

    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> InProcessSampler:
        """Makes a sampler; see `Replay.sampler`."""
        self.table(table).check_batch(batch_size)
        seconds = base.check_timeout(timeout, self.default_timeout)
        with self.shared.lock:
            self.shared.check_open()
            thread = threading.get_ident() if self.in_turns else None
            return InProcessSampler(self.shared, table, int(batch_size), seconds, thread)

    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """Returns whether the rate limiter lets `num_items` items in now."""
        self.table(table)
        with self.shared.lock:
            self.shared.check_open()
            return self.shared.items[table].can_insert(num_items)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities ``[B]``; of a key given twice the last counts. See `Replay`."""
        self.table(table)
        base.check_priorities(table, keys, priorities)
        with self.shared.lock:
            self.shared.check_open()
            items = self.shared.items[table]
            if np.size(priorities):
                items.check_power(float(np.max(priorities)))
            items.update_priorities(keys, priorities)

    def info(self, table: str) -> TableInfo:
        """Returns the table's counters now."""
        self.table(table)
        with self.shared.lock:
            self.shared.check_open()
            return self.shared.items[table].info()

    def count_as_sampled(self, table: str, num_sampled: int) -> None:
        """Sets the count of items drawn; see `Replay.count_as_sampled`."""
        self.table(table)
        with self.shared.lock:
            self.shared.check_open()
            self.shared.items[table].num_sampled = int(num_sampled)
            self.shared.notify_waiting()

    def contents(self, table: str) -> tuple[Nest, np.ndarray]:
        """Returns all items of a table, oldest first: their data, leaves ``[N, ...]``, and the rows of their steps.

        Two items share a step where they have a row in common. Rows are ``[N, T]`` where items are all of their
        steps, else ``[N, 2]``, the first and the last.
        """
        self.table(table)
        with self.shared.lock:
            self.shared.check_open()
            return self.shared.items[table].contents()

    def reset(self, table: str) -> None:
        """Removes every item and sets the counters to zero; keys are never given again."""
        self.table(table)
        with self.shared.lock:
            self.shared.check_open()
            self.shared.items[table].reset()
            self.shared.notify_waiting()

    def close(self) -> None:
        """Frees the memory; everyone who waits gets `ReplayClosedError`."""
        with self.shared.lock:
            self.shared.close()

    @property
    def nbytes(self) -> int:
        """Returns the memory that steps and items take, in bytes (selectors excluded)."""
        with self.shared.lock:
            return self.shared.nbytes

    def save(self, directory: pathlib.Path) -> None:
        """Writes everything, straight from the columns, into the empty `directory`.

        Raises:
            CheckpointError: the directory is not there, or cannot be written to.
        """
        with self.shared.lock:
            self.shared.check_open()
            self.shared.save(pathlib.Path(directory))

    def restore(self, directory: pathlib.Path) -> None:
        """Restores the contents that `save` wrote. On an error, this replay is as it was before.

        Tables are those that were saved, but for the room of a queue, into which the items have to fit.

        Raises:
            CheckpointError: unreadable, saved by other tables (says which field), or a writer of this
                replay is in mid-episode.
        """
        path = pathlib.Path(directory) / STATE_FILE
        try:
            state = read_json(path, MOST_TEXT)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"No readable replay checkpoint at {path}: {error}. Restore another one, or start anew."
            ) from error
        with self.shared.lock:
            self.shared.check_open()
            self.shared.restore(path.parent, state)


class InProcessSampler(base.Sampler):
    """Draws batches from one table of an `InProcessReplay`; made by its `sampler`. Fetches nothing ahead."""

    def __init__(
        self, shared: SharedTables, table: str, batch_size: int, timeout: float, writing_thread: int | None = None
    ):
        self._shared = shared
        self._table = table
        self._batch_size = batch_size
        self._timeout = timeout
        self._writing_thread = writing_thread
        self._closed = False

    def ready(self) -> bool:
        """Returns whether `__next__` would return a batch without waiting."""
        with self._shared.lock:
            return self._ready()

    def _ready(self) -> bool:
        self._shared.check_open()
        if self._closed:
            raise ReplayClosedError("This sampler is closed; make a new one with replay.sampler(...).")
        return self._shared.items[self._table].can_sample(self._batch_size)

    def __next__(self) -> DrawnBatch:
        """Returns the next batch; waits while the rate limiter forbids it. See `Sampler`.

        Raises:
            ConfigError: replay is `in_turns`, and who would wait here is who writes.
        """
        shared = self._shared
        with shared.lock:
            if not self._ready():
                if self._writing_thread == threading.get_ident():
                    raise base.never_due(self._table, self._batch_size)
                shared.wait(self._ready, self._timeout, self._describe)
            sample = shared.items[self._table].sample(self._batch_size)
            shared.notify_waiting()
        return sample

    def _describe(self) -> str:
        return (
            f"Table {self._table!r} gave no batch of {self._batch_size} for {self._timeout:g} s: its rate "
            f"limiter waits for items ({self._shared.items[self._table].describe()}). Is anyone writing? "
            "Insert from another thread or in turns (ask ready), or lower the minimum size."
        )

    def close(self) -> None:
        """Stops sampling."""
        with self._shared.lock:
            self._closed = True
            self._shared.notify_waiting()
