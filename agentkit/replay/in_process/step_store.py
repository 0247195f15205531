"""The steps of an in-process replay: one column per leaf, one row per step, counted references."""

from __future__ import annotations

import array
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ConfigError
from agentkit.nests import LeafReader
from agentkit.replay.in_process import arrays
from agentkit.replay.in_process.frame_column import FrameColumn, stack_axis
from agentkit.types import Nest

PADDING_ROW = 0
"""The row of zeros that padding refers to; never written, never freed."""

PADDING_REFERENCES = 2**30
"""What that row's count begins with: items add and subtract what they use of it."""


class StepStore:
    """Holds each step once, however many items refer to it, and each frame of stacked images once.

    A row lives while its count of references (from items and from writers' histories) is above 0,
    and is then used again. Not thread-safe.

    Args:
        spec: nest of array specs of one step.
        has_history: whether items look at the steps before theirs: each row then knows the one before it, in 4 bytes.

    Attributes:
        columns: one per leaf. All give rows with ``take(rows, 0)``.
    """

    def __init__(self, spec: Nest, has_history: bool = False):
        self.spec = spec
        # Of each row the row before it in its episode, and of that the padding row.
        self._before = array.array("i", [PADDING_ROW]) if has_history else None
        self.read_leaves = LeafReader(spec, "step")
        columns: list[np.ndarray | FrameColumn] = list(make_columns(spec, "step"))
        for i, leaf in enumerate(tree.flatten(spec)):
            axis = stack_axis(leaf)
            if axis is not None:
                columns[i] = FrameColumn(tuple(leaf.shape), axis)
        self._set_columns(columns)
        for values in self._values:
            arrays.grow(values, 1)
        self.num_rows = 1  # rows in use or free; those above have never been used
        # Counted one by one at every step, which an array.array does in a third of numpy's time.
        self._references = array.array("i", [PADDING_REFERENCES])
        self._free = array.array("q")

    def _set_columns(self, columns: list[np.ndarray | FrameColumn]) -> None:
        self.columns = columns
        self._stacks = [(i, column) for i, column in enumerate(columns) if isinstance(column, FrameColumn)]
        # What is written per row: the leaf, or the numbers of its frames.
        self._values = [column.frame_numbers if isinstance(column, FrameColumn) else column for column in columns]

    @property
    def num_free(self) -> int:
        """Counts the rows that were used and may be used again."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Returns the memory held, in bytes."""
        columns = sum(column.nbytes for column in self.columns)
        others = [self._references, self._free] + ([] if self._before is None else [self._before])
        return columns + sum(values.itemsize * len(values) for values in others)

    def add(self, leaves: Sequence[Any], before: int = PADDING_ROW) -> int:
        """Stores a step; returns its row, with one reference.

        Args:
            leaves: checked by `read_leaves`.
            before: the row of its episode's last step, if there is one: stacked images show its frames again.
        """
        if self._free:
            row = self._free.pop()
        else:
            row = self.num_rows
            for values in self._values:
                if row >= values.shape[0]:
                    arrays.grow(values, row + 1)
            self._references.append(0)
            if self._before is not None:
                self._before.append(PADDING_ROW)
            self.num_rows = row + 1
        if self._before is not None:
            self._before[row] = before
        if self._stacks:
            leaves = list(leaves)
            for i, column in self._stacks:
                leaves[i] = column.keep(leaves[i], before)
        for values, leaf in zip(self._values, leaves, strict=True):
            values[row] = leaf
        self._references[row] = 1
        return row

    def add_block(self, columns: Sequence[np.ndarray], starts: np.ndarray, before: int) -> np.ndarray:
        """Stores steps that follow one another; returns their rows ``[n]``, each with one reference.

        Args:
            columns: a column ``[n, ...]`` for each leaf, of its dtype.
            starts: which of the steps begin an episode.
            before: as in `add`, of the first step.
        """
        count = columns[0].shape[0]
        reused = min(count, len(self._free))
        rows = np.arange(self.num_rows - reused, self.num_rows - reused + count)
        if reused:
            rows[:reused] = self._free[-reused:][::-1]
            del self._free[-reused:]
        self.num_rows += count - reused
        for values in self._values:
            if self.num_rows > values.shape[0]:
                arrays.grow(values, self.num_rows)
        self._references.frombytes(bytes(4 * (count - reused)))
        previous = np.concatenate([[before], rows[:-1]])
        previous[starts] = PADDING_ROW
        if self._before is not None:
            self._before.frombytes(bytes(4 * (count - reused)))
            np.frombuffer(self._before, np.int32)[rows] = previous
        stacks = dict(self._stacks)
        for i, (values, column) in enumerate(zip(self._values, columns, strict=True)):
            if i in stacks:
                for row, step, last in zip(rows.tolist(), column, previous.tolist(), strict=True):
                    values[row] = stacks[i].keep(step, last)
            else:
                values[rows] = column
        self._counts()[rows] = 1
        return rows

    def walk_back(self, row: int, count: int) -> list[int]:
        """Returns the rows of the `count` steps before that of `row`, newest first; fewer where its episode began."""
        before, rows = self._before, list[int]()
        if before is not None:
            for _ in range(count):
                row = before[row]
                if row == PADDING_ROW:
                    break
                rows.append(row)
        return rows

    def histories(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Returns the rows of the `count` steps before each of `rows` ``[B]``, and those themselves.

        Returns:
            intp ``[B, count + 1]``, oldest first; the padding row stands for steps before an episode.
        """
        found = np.empty((rows.shape[0], count + 1), np.intp)
        found[:, count] = rows
        before = (
            np.frombuffer(self._before, np.int32) if self._before is not None else np.zeros(self.num_rows, np.int32)
        )
        for i in range(count, 0, -1):
            found[:, i - 1] = before.take(found[:, i])
        return found

    def add_row_references(self, rows: Sequence[int]) -> None:
        """Adds a reference to each of a few rows."""
        references = self._references
        for row in rows:
            references[row] += 1

    def add_end_references(self, first: int, last: int) -> None:
        """Adds a reference to each of two rows, which may be the same."""
        references = self._references
        references[first] += 1
        references[last] += 1

    def release(self, row: int) -> None:
        """Takes a reference from one row."""
        references = self._references
        references[row] = left = references[row] - 1
        if left == 0:
            self._free.append(row)
            if self._stacks:
                self._free_frames(row)

    def _free_frames(self, row: int) -> None:
        for _, column in self._stacks:
            column.free(row)

    def release_end_references(self, first: int, last: int) -> None:
        """Removes the references that `add_end_references` added."""
        self.release(first)
        self.release(last)

    def add_references(self, rows: np.ndarray) -> None:
        """Adds a reference to every row of an array, as often as it occurs there."""
        rows = rows.reshape(-1)
        np.add.at(self._counts(), rows, np.ones(rows.shape, np.int32))

    def release_references(self, rows: np.ndarray) -> None:
        """Takes a reference from every row of an array, as often as it occurs there."""
        rows = rows.reshape(-1)
        counts = self._counts()
        np.subtract.at(counts, rows, np.ones(rows.shape, np.int32))
        for row in np.unique(rows[counts[rows] == 0]).tolist():
            self._free.append(row)
            self._free_frames(row)

    def _counts(self) -> np.ndarray:
        """Returns the counts as numpy sees them; drop them before a row is added: no count could be appended."""
        return np.frombuffer(self._references, np.int32)

    # --- saving ----------------------------------------------------------------------------------

    def save(self, directory: pathlib.Path, prefix: str) -> dict[str, Any]:
        """Writes the columns to files named `prefix`...; returns the rest, for JSON."""
        # In the order of `restore`: who saves and goes on then uses free rows as who restores does.
        self._free = array.array("q", sorted(self._free, reverse=True))
        columns = [
            column.save(directory, f"{prefix}{i}", self.num_rows)
            if isinstance(column, FrameColumn)
            else arrays.write(directory, f"{prefix}{i}", column[: self.num_rows])
            for i, column in enumerate(self.columns)
        ]
        state: dict[str, Any] = {"num_rows": self.num_rows, "columns": columns}
        if self._before is not None:
            state["before"] = arrays.write(directory, f"{prefix}before", np.array(self._before, np.int32))
        return state

    def restore(
        self, directory: pathlib.Path, prefix: str, saved: dict[str, Any], held: Callable[[], Iterable[np.ndarray]]
    ) -> None:
        """Restores the steps that `save` wrote into this new store, and counts the references in `held` anew.

        Args:
            directory: the checkpoint's.
            prefix: of its files' names.
            saved: what `save` returned.
            held: returns arrays of the rows that are referred to; called when the rows before them are known.

        Raises:
            CheckpointError: damaged, or not of these steps.
        """
        num_rows = int(saved["num_rows"])
        columns: list[np.ndarray | FrameColumn] = []
        for i, (column, found) in enumerate(zip(self.columns, saved["columns"], strict=True)):
            if isinstance(column, FrameColumn):
                column.restore(directory, f"{prefix}{i}", found, num_rows)
                columns.append(column)
            else:
                shape = (num_rows, *column.shape[1:])
                columns.append(arrays.read(directory, f"{prefix}{i}", found, column.dtype, shape))
        if self._before is not None:
            before = arrays.read(directory, f"{prefix}before", saved["before"], np.dtype(np.int32), (num_rows,))
            _check_rows(before, num_rows, directory)
            self._before = array.array("i", before.tobytes())
        self._set_columns(columns)
        self.num_rows = num_rows
        self._references = array.array("i", bytes(4 * num_rows))
        self._references[PADDING_ROW] = PADDING_REFERENCES
        for rows in held():
            _check_rows(rows, num_rows, directory)
            self.add_references(rows)
        self._free = array.array("q", np.flatnonzero(self._counts() == 0).tolist()[::-1])
        for _, stacks in self._stacks:
            for row in self._free:
                stacks.free(row)
            stacks.sort_free()


def _check_rows(rows: np.ndarray, num_rows: int, directory: pathlib.Path) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < num_rows:
        raise CheckpointError(f"The replay checkpoint {directory} refers to steps it does not hold.")


def make_columns(spec: Nest, what: str) -> list[np.ndarray]:
    """Makes empty columns ``[0, ...]``, one per leaf of `spec`; refuses leaves that are Python objects."""
    for name, leaf in zip(specs.leaf_names(spec), tree.flatten(spec), strict=True):
        if np.dtype(leaf.dtype).hasobject:
            raise ConfigError(
                f"Replay stores arrays of numbers; {what} leaf {name!r} has dtype {leaf.dtype}. Encode it as numbers."
            )
    return [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in tree.flatten(spec)]
