"""A writer's stream at the server: blocks of steps and items, which enter the tables as blocks, each once.

A block is a nest of plain values and columns:

    sequence    its number, from 1; a writer's next block has the next one
    position    the number of its first step
    steps       a column [n, ...] for each leaf of a step
    starts      int64: which of its steps begin an episode
    items       a list, in order: {"table", "first" and "stop" int64 [k], "padding" int32 [k], "priority" float64 [k],
                "inline": a column [k, ...] for each leaf}

Steps are counted from the writer's first one, and items name theirs by these numbers. A priority of NaN is the largest
so far.

Each item goes in once, and with the steps that it names, whatever is lost on the way:

* The server keeps for each writer how much is in (`Confirmed`), and saves that together with the tables.
* It answers a block when all of it is in. The answer says the same of all blocks before that one.
* The writer sends again what was not answered, and keeps the steps that the next items may refer to.
* A stream ends with its server, and where its writer is silent for long. The writer then opens another: it tells the
  steps of blocks that it knows to be in, as blocks without items, and sends all others again.
* A stream takes blocks in the order of their numbers, none twice and none left out. Of a block that is in already, as
  `Confirmed` has it and its writer has not heard, it takes the steps and no items.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tree

from agentkit.errors import SpecError
from agentkit.replay.in_process.item_table import ItemTable
from agentkit.replay.in_process.shared import SharedTables
from agentkit.replay.in_process.step_store import PADDING_ROW


class Confirmed(NamedTuple):
    """Says how much of a writer's is in the tables.

    Attributes:
        blocks: the number of the last block that is in as a whole.
        items: how many items of the block after that one are in.
    """

    blocks: int = 0
    items: int = 0


class WriterStream:
    """Puts one writer's blocks into the tables. Not thread-safe.

    Attributes:
        name: the writer's.
        due: the number of the block to take next, or, while the stream waits, of the one that it has taken.
        session: of the connection that it counts by; a writer that has to tell its history again begins another.
        heard: when it was heard last, monotonic seconds.
    """

    def __init__(self, shared: SharedTables, opening: dict[str, Any], heard: float):
        """Takes up a stream at the steps that its next items may refer to.

        Args:
            shared: the tables.
            opening: "writer", "session", "store", "history", and "blocks" without items.
            heard: see above.
        """
        self._shared = shared
        self.name, self.session, self.heard = str(opening["writer"]), int(opening["session"]), heard
        self._store = shared.stores[int(opening["store"])]
        self._specs = tree.flatten(self._store.spec)
        self._history = int(opening["history"])
        self._rows: np.ndarray = np.zeros(0, np.int64)  # Of the steps up to `_position`, oldest first.
        self._groups: list[tuple[ItemTable, dict[str, Any]]] | None = None  # Of the block that was taken.
        self.due, self._position = 1, 0
        if blocks := opening["blocks"]:
            self.due, self._position = int(blocks[0]["sequence"]), int(blocks[0]["position"])
        for block in blocks:
            self._add_steps(block)
            self.due += 1
        self._forget()

    @property
    def waits(self) -> bool:
        """Returns whether a block has been taken, and is not in as a whole."""
        return self._groups is not None

    def _confirmed(self) -> Confirmed:
        return Confirmed(*self._shared.confirmed.get(self.name, ()))

    def take(self, block: dict[str, Any]) -> None:
        """Takes the steps of the block that is due; `advance` puts in those of its items that are not in yet.

        Raises:
            SpecError: it is another, or does not fit the tables.
        """
        groups = [(self._shared.items[group["table"]], group) for group in block["items"]]
        for items, group in groups:
            _check_group(items, group)
        self._add_steps(block)
        base = self._position - len(self._rows)
        for items, group in groups:
            first, stop = group["first"], group["stop"]
            are_told = (base <= first) & (first < stop) & (stop <= self._position)
            if items.store is not self._store or not are_told.all():
                raise SpecError(f"Writer {self.name} has items of steps that it has not told.")
        blocks = self._confirmed().blocks
        if self.due <= blocks:
            groups = []  # They are in, and the answer was lost with the stream before.
        elif self.due > blocks + 1:
            # What was confirmed since the checkpoint that the server began with was lost with that server.
            self._shared.confirmed[self.name] = Confirmed(self.due - 1)
        self._groups = groups

    def _add_steps(self, block: dict[str, Any]) -> None:
        if (block["sequence"], block["position"]) != (self.due, self._position):
            raise SpecError(
                f"Writer {self.name}: expected block {self.due} from step {self._position} on, found block "
                f"{block['sequence']} from step {block['position']} on."
            )
        columns = block["steps"]
        counts = {column.shape[0] for column in columns}
        if len(counts) != 1 or [(x.dtype, x.shape[1:]) for x in columns] != [(s.dtype, s.shape) for s in self._specs]:
            raise SpecError(f"Steps of writer {self.name} do not fit the tables.")
        starts = block["starts"]
        if starts.dtype != np.int64 or starts.ndim != 1 or not ((starts >= 0) & (starts < max(counts))).all():
            raise SpecError(f"Writer {self.name}: expected starts of episodes among its steps, found {starts!r:.80}.")
        if counts != {0}:
            before = int(self._rows[-1]) if self._rows.size else PADDING_ROW
            rows = self._store.add_block(columns, block["starts"], before)
            self._rows = np.concatenate([self._rows, rows])
            self._position += len(rows)

    def next_table(self) -> ItemTable | None:
        """Returns the table that the next item is for; None where all are in."""
        done = self._confirmed().items
        for items, group in self._groups or ():
            if done < len(group["first"]):
                return items
            done -= len(group["first"])
        return None

    def advance(self) -> bool:
        """Puts items in, as the rate limiter allows; returns whether the block is in as a whole."""
        assert self._groups is not None
        blocks, done = self._confirmed()
        begin = done
        for items, group in self._groups:
            count = len(group["first"])
            while begin < count:
                put = items.insert_block(*self._rows_of(items, group, begin))
                done, begin = done + put, begin + put
                self._shared.confirmed[self.name] = Confirmed(blocks, done)
                if put == 0:
                    return False
            begin -= count
        if self.due > blocks:
            self._shared.confirmed[self.name] = Confirmed(self.due)
        self._groups, self.due = None, self.due + 1
        self._forget()
        return True

    def _rows_of(
        self, items: ItemTable, group: dict[str, Any], begin: int
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Returns what `insert_block` takes, of the items of a group from the one numbered `begin` on."""
        base = self._position - len(self._rows)
        first, stop, padding = (group[name][begin:] for name in ("first", "stop", "padding"))
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


def _check_group(items: ItemTable, group: dict[str, Any]) -> None:
    """Refuses items whose columns do not go together, before any of their block is in."""
    columns = [group["first"], group["stop"], group["padding"], group["priority"], *group["inline"]]
    inline = tree.flatten(items.table.layout.inline)
    expected = [(np.dtype(kind), ()) for kind in (np.int64, np.int64, np.int32, np.float64)]
    expected += [(leaf.dtype, leaf.shape) for leaf in inline]
    priority = group["priority"]
    if (
        [(column.dtype, column.shape[1:]) for column in columns] != expected
        or len({column.shape[0] for column in columns}) != 1
        or not (np.isnan(priority) | ((priority >= 0) & (priority < np.inf))).all()
    ):
        raise SpecError(f"Items for table {items.table.name!r} do not fit it.")
