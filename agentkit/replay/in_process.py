"""Replay in this process: numpy columns, steps and frames stored once, items as row numbers, no server.

Sampling is a gather of rows (`ItemTable.sample`); steps live in a `StepStore`, which all tables of
one step structure share. One lock guards everything: writers and samplers may be used from several
threads, each writer from one at a time.
"""

from __future__ import annotations

import collections
import json
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ReplayClosedError, ReplayTimeoutError
from agentkit.replay import base
from agentkit.replay.in_process_writer import InProcessWriter, Window
from agentkit.replay.item_table import ItemTable
from agentkit.replay.step_store import StepStore
from agentkit.replay.table import Table
from agentkit.types import Nest, ReplaySample, Seed, TableInfo

FORMAT = 2
"""Version of what `save` writes; version 1, in which stacked images were stored whole, can be read."""

STATE_FILE = "replay.json"


class InProcessReplay(base.Replay):
    """Tables in this process's memory.

    Sampling and inserting are deterministic: the same seed and the same calls give the same batches,
    bit for bit, also across `save` and `restore` (`resumable`). Within one batch, repeated items
    report the `times_sampled` that they have after the batch, unless `max_times_sampled` limits it.

    Args:
        tables: descriptions with different names.
        seed: of samplers and removers.
        default_timeout: seconds that writers and samplers wait unless they were given another.

    Raises:
        ConfigError: no tables, two of one name, or a timeout that is no deadline.
    """

    resumable = True

    def __init__(self, tables: Sequence[Table], seed: Seed = 0, default_timeout: float = 60.0):
        self.tables: Mapping[str, Table] = base.index_tables(tables)
        self.default_timeout = base.check_timeout(default_timeout, default_timeout)
        self._seed = seed
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_waiting = 0
        self._closed = False
        self._windows: set[Window] = set()
        self._orphans: collections.deque[Window] = collections.deque()  # of writers that are gone
        self._restored: set[Window] = set()  # of writers that are yet to be restored
        self._make_tables()

    def _make_tables(self) -> None:
        seed = self._seed
        root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._stores: list[StepStore] = []
        self._items: dict[str, ItemTable] = {}
        for index, (name, table) in enumerate(self.tables.items()):
            # Not spawn(): it changes the caller's sequence.
            child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, index))
            self._items[name] = ItemTable(table, self._store_for(table.layout.step), child)

    def _store_for(self, spec: Nest) -> StepStore:
        for store in self._stores:
            if _same_specs(store.spec, spec):
                return store
        self._stores.append(StepStore(spec))
        return self._stores[-1]

    # --- Replay ----------------------------------------------------------------------------------

    def writer(self, history: int, *, timeout: float | None = None) -> InProcessWriter:
        """A new writer; see `Replay.writer`."""
        history = base.check_history(history)
        seconds = base.check_timeout(timeout, self.default_timeout)
        with self._lock:
            self._check_open()
            self._bury_orphans()
            return InProcessWriter(self, history, seconds)

    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> InProcessSampler:
        """A new sampler; see `Replay.sampler`."""
        self.table(table).check_batch(batch_size)
        seconds = base.check_timeout(timeout, self.default_timeout)
        with self._lock:
            self._check_open()
            return InProcessSampler(self, table, int(batch_size), seconds)

    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """True if the rate limiter lets `num_items` items in now."""
        self.table(table)
        with self._lock:
            self._check_open()
            return self._items[table].can_insert(num_items)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities ``[B]``; of a key given twice the last counts. See `Replay`."""
        self.table(table)
        base.check_priorities(table, keys, priorities)
        with self._lock:
            self._check_open()
            items = self._items[table]
            if np.size(priorities):
                items.check_power(float(np.max(priorities)))
            items.update_priorities(keys, priorities)

    def info(self, table: str) -> TableInfo:
        """The table's counters now."""
        self.table(table)
        with self._lock:
            self._check_open()
            return self._items[table].info()

    def contents(self, table: str) -> tuple[Nest, np.ndarray]:
        """All items of a table, oldest first: their data, leaves ``[N, ...]``, and the rows of their steps.

        Two items share a step where they have a row in common. Rows are ``[N, T]`` where items are all of their
        steps, else ``[N, 2]``, the first and the last.
        """
        self.table(table)
        with self._lock:
            self._check_open()
            return self._items[table].contents()

    def reset(self, table: str) -> None:
        """Removes every item and sets the counters to zero; keys are never given again."""
        self.table(table)
        with self._lock:
            self._check_open()
            self._items[table].reset()
            self._changed.notify_all()

    def close(self) -> None:
        """Frees the memory; everyone who waits gets `ReplayClosedError`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._items, self._stores = {}, []
            self._changed.notify_all()

    @property
    def nbytes(self) -> int:
        """Memory that steps and items take, in bytes (selectors excluded)."""
        with self._lock:
            return sum(x.nbytes for x in self._stores) + sum(x.nbytes for x in self._items.values())

    # --- waiting ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayClosedError("This replay is closed; make a new one.")

    def _wait(self, ready: Callable[[], bool], timeout: float, describe: Callable[[], str]) -> None:
        """Waits, holding the lock, until `ready`; it raises where there is nothing to wait for any more."""
        deadline = time.monotonic() + timeout
        self._num_waiting += 1
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ReplayTimeoutError(describe())
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        finally:
            self._num_waiting -= 1

    def _bury_orphans(self) -> None:
        """Frees what writers held that were garbage-collected; that can happen in any thread."""
        while self._orphans:
            self._free_window(self._orphans.popleft())

    def _free_window(self, window: Window) -> None:
        self._windows.discard(window)
        if self._stores:
            store = self._stores[window.store]
            for row in window:
                store.release(row)
        window.clear()

    # --- saving ----------------------------------------------------------------------------------

    def save(self, directory: pathlib.Path) -> None:
        """Writes everything, straight from the columns, into the empty `directory`.

        Raises:
            CheckpointError: the directory is not there, or cannot be written to.
        """
        with self._lock:
            self._check_open()
            self._bury_orphans()
            for window in list(self._restored):  # their writers had the time to come back
                self._restored.discard(window)
                self._free_window(window)
            try:
                state = self._write_arrays(pathlib.Path(directory))
                text = json.dumps(state)
                (pathlib.Path(directory) / STATE_FILE).write_text(text)  # last: its absence shows a torn save
            except OSError as error:
                raise CheckpointError(f"Replay cannot be saved in {directory}: {error}") from error

    def _write_arrays(self, directory: pathlib.Path) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "fingerprints": [table.fingerprint() for table in self.tables.values()],
            "stores": [x.save(directory, f"steps{i}.") for i, x in enumerate(self._stores)],
            "tables": [x.save(directory, f"table{i}.") for i, x in enumerate(self._items.values())],
            "windows": [{"store": window.store, "rows": list(window)} for window in self._windows],
        }

    def restore(self, directory: pathlib.Path) -> None:
        """Takes back what `save` wrote. On an error, this replay is as it was before.

        Raises:
            CheckpointError: unreadable, saved by other tables (says which field), or a writer of this
                replay is in mid-episode.
        """
        path = pathlib.Path(directory) / STATE_FILE
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"No readable replay checkpoint at {path}: {error}. Restore another one, or start anew."
            ) from error
        with self._lock:
            self._check_open()
            self._bury_orphans()
            if any(self._windows):
                raise CheckpointError(
                    "A replay is restored before its writers append steps; a writer is in mid-episode. "
                    "Restore first, or end its episode."
                )
            before = self._stores, self._items
            self._make_tables()
            try:
                windows = self._read_arrays(path.parent, state)
            except BaseException as error:
                self._stores, self._items = before
                if isinstance(error, KeyError | TypeError | ValueError | IndexError | AttributeError):
                    raise CheckpointError(
                        f"The replay checkpoint {path} is damaged ({type(error).__name__}: {error}). "
                        "Restore an older one."
                    ) from error
                raise
            self._restored = set(windows)
            self._windows |= self._restored
            self._changed.notify_all()

    def _read_arrays(self, directory: pathlib.Path, state: dict[str, Any]) -> list[Window]:
        if state["format"] not in (1, FORMAT):
            raise CheckpointError(
                f"The replay checkpoint {directory} has format {state['format']}, expected 1 or {FORMAT}. "
                "Restore it with the version that wrote it."
            )
        _check_fingerprints(list(self.tables.values()), state["fingerprints"])
        for index, (items, saved) in enumerate(zip(self._items.values(), state["tables"], strict=True)):
            items.restore(directory, f"table{index}.", saved)
        windows = []
        for saved in state["windows"]:
            window = Window(int(row) for row in saved["rows"])
            window.store = int(saved["store"])
            windows.append(window)
        for index, (store, saved) in enumerate(zip(self._stores, state["stores"], strict=True)):
            held = [x.held_rows() for x in self._items.values() if x.store is store]
            held += [np.array(w, np.int64) for w in windows if w.store == index]
            store.restore(directory, f"steps{index}.", saved, held)
        return windows


class InProcessSampler(base.Sampler):
    """Draws batches from one table of an `InProcessReplay`; made by its `sampler`. Fetches nothing ahead."""

    def __init__(self, replay: InProcessReplay, table: str, batch_size: int, timeout: float):
        self._replay = replay
        self._table = table
        self._batch_size = batch_size
        self._timeout = timeout
        self._closed = False

    def ready(self) -> bool:
        """True if `__next__` would return a batch without waiting."""
        with self._replay._lock:
            return self._ready()

    def _ready(self) -> bool:
        self._replay._check_open()
        if self._closed:
            raise ReplayClosedError("This sampler is closed; make a new one with replay.sampler(...).")
        return self._replay._items[self._table].can_sample(self._batch_size)

    def __next__(self) -> ReplaySample:
        """The next batch; waits while the rate limiter forbids it. See `Sampler`."""
        replay = self._replay
        with replay._lock:
            if not self._ready():
                replay._wait(self._ready, self._timeout, self._describe)
            sample = replay._items[self._table].sample(self._batch_size)
            if replay._num_waiting:
                replay._changed.notify_all()
        return sample

    def _describe(self) -> str:
        return (
            f"Table {self._table!r} gave no batch of {self._batch_size} for {self._timeout:g} s: its rate "
            f"limiter waits for items ({self._replay._items[self._table].describe()}). Is anyone writing? "
            "Insert from another thread or in turns (ask ready), or lower the minimum size."
        )

    def close(self) -> None:
        """Stops sampling."""
        with self._replay._lock:
            self._closed = True
            self._replay._changed.notify_all()


def _same_specs(a: Nest, b: Nest) -> bool:
    try:
        tree.assert_same_structure(a, b)
    except (ValueError, TypeError):
        return False
    pairs = zip(tree.flatten(a), tree.flatten(b), strict=True)
    same_leaves = all(tuple(x.shape) == tuple(y.shape) and x.dtype == y.dtype for x, y in pairs)
    return same_leaves and specs.leaf_names(a) == specs.leaf_names(b)


def _check_fingerprints(tables: Sequence[Table], saved: Sequence[dict[str, Any]]) -> None:
    names, saved_names = [table.name for table in tables], [x["name"] for x in saved]
    if names != saved_names:
        raise CheckpointError(
            f"The checkpoint holds the replay tables {saved_names}, expected {names}. Restore it into a "
            "replay of the same tables in the same order."
        )
    for table, fields in zip(tables, saved, strict=True):
        for field, expected in table.fingerprint().items():
            if fields.get(field) != expected:
                raise CheckpointError(
                    f"Replay table {table.name!r} differs from the saved one in {field}: expected "
                    f"{expected}, found {fields.get(field)} in the checkpoint. Use the settings it was saved "
                    "with."
                )
