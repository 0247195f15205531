"""The writer of an in-process replay, and the window of steps that it holds."""

from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.errors import CheckpointError, ReplayClosedError, SpecError
from agentkit.replay import base
from agentkit.replay.item_table import ItemTable
from agentkit.replay.step_store import PADDING_ROW
from agentkit.replay.table import describe_leaves
from agentkit.types import Nest

if TYPE_CHECKING:
    from agentkit.replay.in_process import InProcessReplay


class Window(collections.deque[int]):
    """The rows of a writer's last steps, oldest first; each row holds a reference for it."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # told apart by identity, not by rows
    __eq__ = object.__eq__

    store = 0  # index of the step store that the rows are in


class InProcessWriter(base.Writer):
    """Writes one stream of steps into an `InProcessReplay`; made by its `writer`."""

    def __init__(self, replay: InProcessReplay, history: int, timeout: float):
        self._replay = replay
        self._history = history
        self._timeout = timeout
        self._closed = False
        self._num_steps = 0
        # With one step structure there is nothing to choose; else the first step chooses.
        self._bound = len(replay._stores) == 1
        self._adopt(Window())

    def _adopt(self, window: Window) -> None:
        self._window = window
        self._replay._windows.add(window)
        # The collector may run in the middle of anything, so it only leaves a note.
        self._finalizer = weakref.finalize(self, self._replay._orphans.append, window)
        self._finalizer.atexit = False

    def append(self, step: Nest) -> int:
        """Stores one step; see `Writer.append`."""
        self._check_open()
        replay, window = self._replay, self._window
        if not self._bound:
            self._bind(step)
        leaves = replay._stores[window.store].read_leaves(step)
        with replay._lock:
            replay._check_open()
            store = replay._stores[window.store]
            if replay._orphans:
                replay._bury_orphans()
            window.append(store.add(leaves, window[-1] if window else PADDING_ROW))
            if len(window) > self._history:
                store.release(window.popleft())
        index = self._num_steps
        self._num_steps = index + 1
        return index

    def _bind(self, step: Nest) -> None:
        found: list[str] = []
        for index, store in enumerate(self._replay._stores):
            try:
                store.read_leaves(step)
            except SpecError as error:
                found.append(str(error))
                continue
            self._window.store, self._bound = index, True
            return
        raise SpecError("The step fits no table of this replay. " + " | ".join(found))

    def create_item(
        self, table: str, priority: float, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int:
        """Creates an item at once; see `Writer.create_item`. Refused or timed out, nothing is changed."""
        self._check_open()
        replay, window = self._replay, self._window
        items = replay._items.get(table)
        if items is None:
            replay.table(table)  # raises unless replay was closed
            raise ReplayClosedError("This replay is closed; make a new one.")
        base.check_priority(table, priority)
        items.check_power(priority)
        base.check_steps(items.table, self._num_steps, self._history, start, stop, padding)
        if items.store is not replay._stores[window.store]:
            raise SpecError(
                f"Table {table!r} holds steps {describe_leaves(items.store.spec)}; this writer's are "
                f"{describe_leaves(replay._stores[window.store].spec)}. Use another writer for it."
            )
        leaves = items.read_inline(inline)
        begin = start - self._num_steps + len(window)
        end = stop - self._num_steps + len(window)
        rows: list[int] | tuple[int, int]
        if items.takes_all:
            rows = [window[i] for i in range(begin, end)] + [PADDING_ROW] * padding
        else:
            rows = window[begin], PADDING_ROW if padding else window[end - 1]
        with replay._lock:
            replay._check_open()
            if not items.can_insert(1):
                self._wait_for(table, items)
            key = items.insert(float(priority), rows, leaves)
            if replay._num_waiting:
                replay._changed.notify_all()
        return key

    def _wait_for(self, table: str, items: ItemTable) -> None:
        def ready() -> bool:
            self._replay._check_open()
            self._check_open()
            return items.can_insert(1)

        def describe() -> str:
            return (
                f"Table {table!r} let no item in for {self._timeout:g} s: its rate limiter waits for samples "
                f"({items.describe()}). Sample from it in another thread or in turns (ask can_insert), or "
                "give the limiter a greater error buffer."
            )

        self._replay._wait(ready, self._timeout, describe)

    def end_episode(self) -> None:
        """Forgets this episode's steps; the next `append` returns 0 again."""
        self._check_open()
        with self._replay._lock:
            self._replay._check_open()
            self._release()

    def _release(self) -> None:
        store = self._replay._stores[self._window.store]
        for row in self._window:
            store.release(row)
        self._window.clear()
        self._num_steps = 0

    def flush(self) -> None:
        """Items are in as soon as they are created: nothing to wait for."""
        self._check_open()
        self._replay._check_open()

    def close(self) -> None:
        """Frees the writer's steps."""
        with self._replay._lock:
            if self._closed:
                return
            self._closed = True
            self._finalizer.detach()
            self._replay._free_window(self._window)
            self._replay._changed.notify_all()

    def save(self) -> dict[str, Any]:
        """The episode's length and which rows of the saved replay are its last steps."""
        self._check_open()
        return {
            "num_steps": self._num_steps,
            "store": self._window.store,
            "rows": np.array(self._window, np.int64),
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
        if len(rows) > self._history or num_steps < len(rows):
            raise CheckpointError(
                f"The saved writer holds {len(rows)} of {num_steps} steps, this one's history is "
                f"{self._history}. Make it with the history that it had."
            )
        replay = self._replay
        with replay._lock:
            replay._check_open()
            if self._num_steps:
                raise CheckpointError("A writer is restored before its first step; this one has begun.")
            found = [w for w in replay._restored if list(w) == rows and w.store == store]
            if rows and not found:
                raise CheckpointError(
                    "The replay holds no steps for this writer. Restore the replay first, from the "
                    "checkpoint that the writer was saved with, and each writer once."
                )
            if rows:
                self._finalizer.detach()
                replay._windows.discard(self._window)
                replay._restored.discard(found[0])
                self._adopt(found[0])
                self._bound = True
            self._num_steps = num_steps

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayClosedError("This writer is closed; make a new one with replay.writer(history).")
