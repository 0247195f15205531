"""What an in-process replay shares with its writers and samplers: tables, steps, and one lock around them."""

from __future__ import annotations

import collections
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ReplayClosedError, ReplayTimeoutError
from agentkit.files import why_refused
from agentkit.replay.in_process.item_table import ItemTable
from agentkit.replay.in_process.step_store import StepStore
from agentkit.replay.rate_limiter import Queue
from agentkit.replay.table import Fifo, Table
from agentkit.types import Nest, Seed

FORMAT = 2
"""Version of what `save` writes; version 1, in which stacked images were stored whole, can be read."""

STATE_FILE = "replay.json"


class WriterHistory(collections.deque[int]):
    """Holds the rows of a writer's last steps, oldest first, with a reference to each row."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # told apart by identity, not by rows
    __eq__ = object.__eq__

    store = 0  # index of the step store that the rows are in


class SharedTables:
    """Holds the contents of an `InProcessReplay`; only who holds `lock` calls a method or changes an attribute.

    Args:
        tables: descriptions by name.
        seed: of samplers and removers.

    Attributes:
        tables: as given.
        lock: around everything here.
        stores: steps; tables of one step structure share one.
        items: each table's items, by name.
        histories: of all writers, and those that were restored and not yet taken over.
        abandoned: histories of writers that were garbage-collected. The one attribute that needs no lock.
        restored: histories whose writers are yet to be restored.
        num_waiting: threads in `wait`.
        confirmed: of writers in other processes (`agentkit.replay.served`), by name, the number of their last block
            that is in, and how many items of the next one are; saved with the rest.
        closed: whether the replay is closed.
    """

    def __init__(self, tables: Mapping[str, Table], seed: Seed):
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self.tables = tables
        self._seed = seed
        self.num_waiting = 0
        self.closed = False
        self.histories: set[WriterHistory] = set()
        self.abandoned: collections.deque[WriterHistory] = collections.deque()
        self.restored: set[WriterHistory] = set()
        self.confirmed: dict[str, tuple[int, int]] = {}
        self._make_tables()

    def _make_tables(self) -> None:
        seed = self._seed
        root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self.stores: list[StepStore] = []
        self.items: dict[str, ItemTable] = {}
        for index, (name, table) in enumerate(self.tables.items()):
            # Not spawn(): it changes the caller's sequence.
            child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, index))
            self.items[name] = ItemTable(table, self._store_for(table.layout.step), child)

    def _store_for(self, spec: Nest) -> StepStore:
        for store in self.stores:
            if _same_specs(store.spec, spec):
                return store
        layouts = [table.layout for table in self.tables.values() if _same_specs(table.layout.step, spec)]
        self.stores.append(StepStore(spec, has_history=any(layout.longest_history for layout in layouts)))
        return self.stores[-1]

    @property
    def nbytes(self) -> int:
        """Returns the memory that steps and items take, in bytes (selectors excluded)."""
        return sum(x.nbytes for x in self.stores) + sum(x.nbytes for x in self.items.values())

    def check_open(self) -> None:
        """Raises ReplayClosedError if the replay is closed."""
        if self.closed:
            raise ReplayClosedError("This replay is closed; make a new one.")

    def close(self) -> None:
        """Frees the memory, and wakes up everyone who waits."""
        if not self.closed:
            self.closed = True
            self.items, self.stores = {}, []
            self._changed.notify_all()

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], timeout: float, describe: Callable[[], str]) -> None:
        """Waits until `ready`, which raises where there is nothing to wait for any more.

        Raises:
            ReplayTimeoutError: with the message of `describe`, after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        self.num_waiting += 1
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ReplayTimeoutError(describe())
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        finally:
            self.num_waiting -= 1

    def notify_waiting(self) -> None:
        """Lets everyone in `wait` look again."""
        if self.num_waiting:
            self._changed.notify_all()

    # --- writers' histories ----------------------------------------------------------------------

    def release_abandoned(self) -> None:
        """Frees the steps of writers that were garbage-collected, which can happen in any thread."""
        while self.abandoned:
            self.release_history(self.abandoned.popleft())

    def release_history(self, history: WriterHistory) -> None:
        """Forgets a writer's history, and frees its steps."""
        self.histories.discard(history)
        self.release_steps(history)

    def release_steps(self, history: WriterHistory) -> None:
        """Clears a writer's history, and frees the steps that were in it."""
        if self.stores:
            store = self.stores[history.store]
            for row in history:
                store.release(row)
        history.clear()

    # --- saving ----------------------------------------------------------------------------------

    def save(self, directory: pathlib.Path) -> None:
        """Writes everything, straight from the columns, into the empty `directory`.

        Raises:
            CheckpointError: the directory is not there, or cannot be written to.
        """
        self.release_abandoned()
        for history in list(self.restored):  # their writers had the time to come back
            self.restored.discard(history)
            self.release_history(history)
        try:
            text = json.dumps(self._write_arrays(directory))
            (directory / STATE_FILE).write_text(text)  # last: its absence shows a torn save
        except OSError as error:
            raise CheckpointError(f"Replay cannot be saved in {directory}: {why_refused(error)}") from error

    def _write_arrays(self, directory: pathlib.Path) -> dict[str, Any]:
        windows = sorted((history.store, list(history)) for history in self.histories)  # A resumed run writes the same.
        return {
            "format": FORMAT,
            "fingerprints": [table.fingerprint() for table in self.tables.values()],
            "stores": [x.save(directory, f"steps{i}.") for i, x in enumerate(self.stores)],
            "tables": [x.save(directory, f"table{i}.") for i, x in enumerate(self.items.values())],
            "windows": [{"store": store, "rows": rows} for store, rows in windows],
            "confirmed": self.confirmed,
        }

    def restore(self, directory: pathlib.Path, state: dict[str, Any]) -> None:
        """Takes back the arrays in `directory` and the `state` beside them. On an error, all is as it was before.

        Raises:
            CheckpointError: damaged, saved by other tables (says which field), or a writer is in mid-episode.
        """
        self.release_abandoned()
        if any(self.histories):
            raise CheckpointError(
                "A replay is restored before its writers append steps; a writer is in mid-episode. "
                "Restore first, or end its episode."
            )
        before = self.stores, self.items
        self._make_tables()
        try:
            histories = self._read_arrays(directory, state)
        except BaseException as error:
            self.stores, self.items = before
            if isinstance(error, KeyError | TypeError | ValueError | IndexError | AttributeError):
                raise CheckpointError(
                    f"The replay checkpoint {directory / STATE_FILE} is damaged ({type(error).__name__}: {error}). "
                    "Restore an older one."
                ) from error
            raise
        self.confirmed = {str(name): (int(a), int(b)) for name, (a, b) in state.get("confirmed", {}).items()}
        self.restored = set(histories)
        self.histories |= self.restored
        self.notify_waiting()

    def _read_arrays(self, directory: pathlib.Path, state: dict[str, Any]) -> list[WriterHistory]:
        if str(state["format"]).startswith("agentkit-reverb"):
            raise CheckpointError(
                f"The replay in {directory} was saved by Reverb, and only Reverb reads it: expected "
                "replay='reverb' (--replay reverb), with which its run began."
            )
        if state["format"] not in (1, FORMAT):
            raise CheckpointError(
                f"The replay checkpoint {directory} has format {state['format']}, expected 1 or {FORMAT}. "
                "Restore it with the version that wrote it."
            )
        _check_fingerprints(list(self.tables.values()), state["fingerprints"])
        for index, (items, saved) in enumerate(zip(self.items.values(), state["tables"], strict=True)):
            items.restore(directory, f"table{index}.", saved, int(state["fingerprints"][index]["max_size"]))
        histories = []
        for saved in state["windows"]:
            history = WriterHistory(int(row) for row in saved["rows"])
            history.store = int(saved["store"])
            histories.append(history)
        for index, (store, saved) in enumerate(zip(self.stores, state["stores"], strict=True)):
            tables = [x for x in self.items.values() if x.store is store]
            writers = [np.array(h, np.int64) for h in histories if h.store == index]

            def held(tables: list[ItemTable] = tables, writers: list[np.ndarray] = writers) -> Iterator[np.ndarray]:
                for items in tables:
                    yield from items.held_rows()
                yield from writers

            store.restore(directory, f"steps{index}.", saved, held)
        return histories


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
        found = table.fingerprint()
        # The room of a queue is who waits for whom, such as writers in turns or in processes of their own.
        room = ("max_size", "rate_limiter") if _is_queue(found) and _is_queue(fields) else ()
        for field, expected in found.items():
            if field not in room and fields.get(field) != expected:
                raise CheckpointError(
                    f"Replay table {table.name!r} differs from the saved one in {field}: expected "
                    f"{expected}, found {fields.get(field)} in the checkpoint. Use the settings it was saved "
                    "with."
                )


def _is_queue(fields: Mapping[str, Any]) -> bool:
    """Returns whether a fingerprint is that of a `queue_table`."""
    in_order = fields["sampler"] == fields["remover"] == repr(Fifo())
    return bool(in_order and fields["rate_limiter"] == repr(Queue(fields["max_size"])))
