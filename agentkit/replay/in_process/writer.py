"""The writer of an in-process replay, and the history of steps that it holds."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from agentkit.errors import CheckpointError, ReplayClosedError, SpecError, unknown_name
from agentkit.replay import base
from agentkit.replay.in_process.item_table import ItemTable
from agentkit.replay.in_process.shared import SharedTables, WriterHistory
from agentkit.replay.in_process.step_store import PADDING_ROW
from agentkit.replay.table import describe_leaves
from agentkit.types import Nest


class InProcessWriter(base.Writer):
    """Writes one stream of steps into an `InProcessReplay`; made by its `writer`."""

    def __init__(self, shared: SharedTables, history: int, timeout: float, *, in_turns: bool):
        self._shared = shared
        self._in_turns = in_turns
        self._max_steps = history
        self._timeout = timeout
        self._closed = False
        self._num_steps = 0
        # With one step structure there is nothing to choose; else the first step chooses.
        self._bound = len(shared.stores) == 1
        self._adopt(WriterHistory())

    def _adopt(self, history: WriterHistory) -> None:
        self._history = history
        self._shared.histories.add(history)
        # The collector may run in the middle of anything, so it only leaves a note.
        self._finalizer = weakref.finalize(self, self._shared.abandoned.append, history)
        self._finalizer.atexit = False

    def append(self, step: Nest) -> int:
        """Stores one step; see `Writer.append`."""
        self._check_open()
        shared, history = self._shared, self._history
        if not self._bound:
            self._bind(step)
        stores = shared.stores
        if not stores:  # As after `close`, which another thread may have called.
            shared.check_open()
        leaves = stores[history.store].read_leaves(step)
        with shared.lock:
            shared.check_open()
            store = shared.stores[history.store]
            if shared.abandoned:
                shared.release_abandoned()
            history.append(store.add(leaves, history[-1] if history else PADDING_ROW))
            if len(history) > self._max_steps:
                store.release(history.popleft())
        index = self._num_steps
        self._num_steps = index + 1
        return index

    def _bind(self, step: Nest) -> None:
        self._history.store, self._bound = find_store(self._shared, step), True

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int:
        """Creates an item at once; see `Writer.create_item`. Refused or timed out, nothing is changed."""
        self._check_open()
        shared, history = self._shared, self._history
        items = find_items(shared, table, history.store, priority)
        base.check_steps(items.table, self._num_steps, self._max_steps, start, stop, padding)
        leaves = items.read_inline(inline)
        begin = start - self._num_steps + len(history)
        end = stop - self._num_steps + len(history)
        rows: list[int] | tuple[int, int]
        if items.takes_all:
            rows = [history[i] for i in range(begin, end)] + [PADDING_ROW] * padding
        else:
            rows = history[begin], PADDING_ROW if padding else history[end - 1]
        with shared.lock:
            shared.check_open()
            if not (items.can_insert(1) or (self._in_turns and not items.table.max_times_sampled)):
                self._wait_for(table, items)
            key = items.insert(items.largest_priority if priority is None else float(priority), rows, leaves)
            shared.notify_waiting()
        return key

    def _wait_for(self, table: str, items: ItemTable) -> None:
        def ready() -> bool:
            self._shared.check_open()
            self._check_open()
            return items.can_insert(1)

        def describe() -> str:
            return (
                f"Table {table!r} let no item in for {self._timeout:g} s: its rate limiter waits for samples "
                f"({items.describe()}). Sample from it in another thread, or in turns (ask can_insert; with "
                "in_turns=True nothing waits between), or give the limiter a greater error buffer."
            )

        self._shared.wait(ready, self._timeout, describe)

    def end_episode(self) -> None:
        """Forgets this episode's steps; the next `append` returns 0 again."""
        self._check_open()
        with self._shared.lock:
            self._shared.check_open()
            self._shared.release_steps(self._history)
        self._num_steps = 0

    def flush(self) -> None:
        """Checks that the writer is open: items are in as soon as they are created."""
        self._check_open()
        self._shared.check_open()

    def close(self) -> None:
        """Frees the writer's steps."""
        with self._shared.lock:
            if self._closed:
                return
            self._closed = True
            self._finalizer.detach()
            self._shared.release_history(self._history)
            self._shared.notify_waiting()

    def save(self) -> dict[str, Any]:
        """Returns the episode's length and which rows of the saved replay are its last steps."""
        self._check_open()
        return {
            "num_steps": self._num_steps,
            "store": self._history.store,
            "rows": np.array(self._history, np.int64),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on with the saved episode.

        Raises:
            CheckpointError: the replay was not restored from the same checkpoint, the state holds
                more steps than this writer's history, or this writer has begun an episode.
        """
        self._check_open()
        try:
            rows = [int(row) for row in np.asarray(state["rows"]).reshape(-1)]
            num_steps, store = int(state["num_steps"]), int(state["store"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"This is no saved writer: {error!r}.") from error
        if len(rows) > self._max_steps or num_steps < len(rows):
            raise CheckpointError(
                f"The saved writer holds {len(rows)} of {num_steps} steps, this one's history is "
                f"{self._max_steps}. Make it with the history that it had."
            )
        shared = self._shared
        with shared.lock:
            shared.check_open()
            if self._num_steps:
                raise CheckpointError("A writer is restored before its first step; this one has begun.")
            found = [w for w in shared.restored if list(w) == rows and w.store == store]
            if rows and not found:
                raise CheckpointError(
                    "The replay holds no steps for this writer. Restore the replay first, from the "
                    "checkpoint that the writer was saved with, and each writer once."
                )
            if rows:
                self._finalizer.detach()
                shared.histories.discard(self._history)
                shared.restored.discard(found[0])
                self._adopt(found[0])
                self._bound = True
            self._num_steps = num_steps

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayClosedError("This writer is closed; make a new one with replay.writer(history).")


def find_store(shared: SharedTables, step: Nest) -> int:
    """Returns the index of the step store that a step fits; raises SpecError where it fits none."""
    found: list[str] = []
    for index, store in enumerate(shared.stores):
        try:
            store.read_leaves(step)
        except SpecError as error:
            found.append(str(error))
            continue
        return index
    shared.check_open()
    raise SpecError("The step fits no table of this replay. " + " | ".join(found))


def find_items(shared: SharedTables, table: str, store: int, priority: float | None) -> ItemTable:
    """Returns the items of a table, to which a writer adds one.

    Args:
        shared: the replay's.
        table: the table's name.
        store: the index of the store that the writer's steps are in.
        priority: the new item's.

    Raises:
        UnknownNameError: no such table.
        SpecError: its steps are in another store, or it does not take this priority.
    """
    stores, items = shared.stores, shared.items.get(table)  # In this order: `close` empties the items first.
    if items is None:
        if table not in shared.tables:
            raise unknown_name("replay table", table, shared.tables)
        raise ReplayClosedError("This replay is closed; make a new one.")
    if priority is not None:
        base.check_priority(table, priority)
        items.check_power(priority)
    if items.store is not stores[store]:
        raise SpecError(
            f"Table {table!r} holds steps {describe_leaves(items.store.spec)}; this writer's are "
            f"{describe_leaves(stores[store].spec)}. Use another writer for it."
        )
    return items
