"""A writer's stream at the server: blocks of steps and items, which enter the tables as blocks, each once.

A block is a nest of plain values and columns:

    sequence    its number, from 1; a writer's next block has the next one
    steps       a column [n, ...] for each leaf of a step
    starts      int64: which of its steps begin an episode
    items       a list, in order: {"table", "first" and "stop" int64 [k], "padding" int32 [k], "priority" float64 [k],
                "inline": a column [k, ...] for each leaf}

Steps are counted from the writer's first one, and items name theirs by these numbers. A priority of NaN is the largest
so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from agentkit.errors import SpecError
from agentkit.replay.in_process.item_table import ItemTable
from agentkit.replay.in_process.shared import SharedTables
from agentkit.replay.in_process.step_store import PADDING_ROW


class WriterStream:
    """Puts one writer's blocks into the tables. Not thread-safe.

    Attributes:
        name: the writer's.
        session: of the connection that it counts by; a writer that has to tell its history again begins another.
        heard: when it was heard last, monotonic seconds.
    """

    def __init__(self, shared: SharedTables, opening: dict[str, Any], heard: float):
        """Takes up a stream at the steps that its next items may refer to.

        Args:
            shared: the tables.
            opening: "writer", "session", "store", "history", "position" (of the first step that follows), and "blocks",
                of steps alone.
            heard: see above.
        """
        self._shared = shared
        self.name, self.session, self.heard = str(opening["writer"]), int(opening["session"]), heard
        self._store = shared.stores[int(opening["store"])]
        self._specs = tree.flatten(self._store.spec)
        self._history = int(opening["history"])
        self._rows: np.ndarray = np.zeros(0, np.int64)  # Of the steps up to `_position`, oldest first.
        self._position = int(opening["position"])
        self._block: dict[str, Any] | None = None
        for block in opening["blocks"]:
            self._add_steps(block)
        self._forget()

    @property
    def confirmed(self) -> int:
        """Returns the number of the last block that is in as a whole."""
        return self._shared.confirmed.get(self.name, (0, 0))[0]

    @property
    def waits(self) -> bool:
        """Returns whether a block has been taken, and is not in as a whole."""
        return self._block is not None

    def take(self, block: dict[str, Any]) -> None:
        """Takes the next block's steps; `advance` puts its items in.

        Raises:
            SpecError: it does not fit the tables.
        """
        _, done = self._shared.confirmed.get(self.name, (0, 0))
        if int(block["sequence"]) != self.confirmed + 1:
            done = 0  # What was confirmed since the checkpoint that the server began with was lost with that server.
        self._add_steps(block)
        self._shared.confirmed[self.name] = (int(block["sequence"]) - 1, done)
        self._block = block
        self._groups = [(self._shared.items[group["table"]], group) for group in block["items"]]

    def _add_steps(self, block: dict[str, Any]) -> None:
        columns = block["steps"]
        counts = {column.shape[0] for column in columns}
        if len(counts) != 1 or [(x.dtype, x.shape[1:]) for x in columns] != [(s.dtype, s.shape) for s in self._specs]:
            raise SpecError(f"Steps of writer {self.name} do not fit the tables.")
        if counts != {0}:
            before = int(self._rows[-1]) if self._rows.size else PADDING_ROW
            rows = self._store.add_block(columns, block["starts"], before)
            self._rows = np.concatenate([self._rows, rows])
            self._position += len(rows)

    def next_table(self) -> ItemTable | None:
        """Returns the table that the next item is for; None where all are in."""
        _, done = self._shared.confirmed[self.name]
        for items, group in self._groups:
            if done < len(group["first"]):
                return items
            done -= len(group["first"])
        return None

    def advance(self) -> bool:
        """Puts items in, as the rate limiter allows; returns whether the block is in as a whole."""
        assert self._block is not None
        sequence, done = self._shared.confirmed[self.name]
        begin = done
        for items, group in self._groups:
            count = len(group["first"])
            while begin < count:
                put = items.insert_block(*self._rows_of(items, group, begin))
                done, begin = done + put, begin + put
                self._shared.confirmed[self.name] = (sequence, done)
                if put == 0:
                    return False
            begin -= count
        self._shared.confirmed[self.name] = (sequence + 1, 0)
        self._block = None
        self._forget()
        return True

    def _rows_of(
        self, items: ItemTable, group: dict[str, Any], begin: int
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Returns what `insert_block` takes, of the items of a group from the one numbered `begin` on."""
        base = self._position - len(self._rows)
        first, stop, padding = (group[name][begin:] for name in ("first", "stop", "padding"))
        if items.store is not self._store or (first < base).any() or (stop > self._position).any():
            raise SpecError(f"Writer {self.name} has items of steps that it has not told.")
        length = items.table.layout.length
        if items.takes_all and length is not None:
            steps = first[:, None] + np.arange(length)
            inside = steps < stop[:, None]
            rows = np.where(inside, self._rows.take(np.where(inside, steps - base, 0)), PADDING_ROW)
        else:
            last = np.where(padding > 0, PADDING_ROW, self._rows.take(stop - 1 - base))
            rows = np.stack([self._rows.take(first - base), last], axis=1)
        return group["priority"][begin:], rows, [column[begin:] for column in group["inline"]]

    def _forget(self) -> None:
        """Frees the steps that no further item may refer to."""
        surplus = len(self._rows) - self._history
        if surplus > 0:
            self._store.release_references(self._rows[:surplus])
            self._rows = self._rows[surplus:]

    def close(self) -> None:
        """Frees the stream's steps; its items keep theirs."""
        self._store.release_references(self._rows)
        self._rows = self._rows[:0]
