"""The steps of an in-process replay: one column per leaf, one row per step, counted references."""

from __future__ import annotations

import array
import pathlib
from collections.abc import Sequence
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

    Attributes:
        columns: one per leaf. All give rows with ``take(rows, 0)``.
    """

    def __init__(self, spec: Nest):
        self.spec = spec
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
        return columns + sum(counts.itemsize * len(counts) for counts in (self._references, self._free))

    def add(self, leaves: Sequence[Any], before: int = PADDING_ROW) -> int:
        """Stores a step; returns its row, with one reference.

        Args:
            leaves: checked by `read_leaves`.
            before: the row of its writer's last step, if there is one: stacked images show its frames again.
        """
        if self._free:
            row = self._free.pop()
        else:
            row = self.num_rows
            for values in self._values:
                if row >= values.shape[0]:
                    arrays.grow(values, row + 1)
            self._references.append(0)
            self.num_rows = row + 1
        if self._stacks:
            leaves = list(leaves)
            for i, column in self._stacks:
                leaves[i] = column.keep(leaves[i], before)
        for values, leaf in zip(self._values, leaves, strict=True):
            values[row] = leaf
        self._references[row] = 1
        return row

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
        """The counts as numpy sees them; to be dropped before a row is added, whose count could not be appended."""
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
        return {"num_rows": self.num_rows, "columns": columns}

    def restore(self, directory: pathlib.Path, prefix: str, saved: dict[str, Any], held: list[np.ndarray]) -> None:
        """Restores the steps that `save` wrote into this new store, and counts the references in `held` anew.

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
        if any(rows.size and not 0 <= rows.min() <= rows.max() < num_rows for rows in held):
            raise CheckpointError(f"The replay checkpoint {directory} refers to steps it does not hold.")
        self._set_columns(columns)
        self.num_rows = num_rows
        self._references = array.array("i", bytes(4 * num_rows))
        self._references[PADDING_ROW] = PADDING_REFERENCES
        for rows in held:
            self.add_references(rows)
        self._free = array.array("q", np.flatnonzero(self._counts() == 0).tolist()[::-1])
        for _, stacks in self._stacks:
            for row in self._free:
                stacks.free(row)
            stacks.sort_free()


def make_columns(spec: Nest, what: str) -> list[np.ndarray]:
    """Makes empty columns ``[0, ...]``, one per leaf of `spec`; refuses leaves that are Python objects."""
    for name, leaf in zip(specs.leaf_names(spec), tree.flatten(spec), strict=True):
        if np.dtype(leaf.dtype).hasobject:
            raise ConfigError(
                f"Replay stores arrays of numbers; {what} leaf {name!r} has dtype {leaf.dtype}. Encode it as numbers."
            )
    return [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in tree.flatten(spec)]
