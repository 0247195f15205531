"""The steps of an in-process replay: one numpy column per leaf, one row per step, counted references."""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.replay import arrays
from agentkit.replay.nest_codec import LeafReader
from agentkit.types import Nest

PADDING_ROW = 0
"""The row of zeros that padding refers to; never written, never freed."""

PADDING_REFERENCES = 2**30
"""What that row's count begins with: items add and subtract what they use of it."""


class StepStore:
    """Holds each step once, however many items refer to it.

    A row lives while its count of references (from items and from writers' histories) is above 0,
    and is then used again. Not thread-safe.

    Args:
        spec: nest of array specs of one step.
    """

    def __init__(self, spec: Nest):
        self.spec = spec
        self.read_leaves = LeafReader(spec, "step")
        self.columns = make_columns(spec, "step")
        for column in self.columns:
            arrays.grow(column, 1)
        self.num_rows = 1  # rows in use or free; those above have never been used
        # Counted one by one at every step, which an array.array does in a third of numpy's time.
        self._references = array.array("i", [PADDING_REFERENCES])
        self._free = array.array("q")

    @property
    def num_free(self) -> int:
        """Rows that were used and may be used again."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        columns = sum(column.nbytes for column in self.columns)
        return columns + sum(counts.itemsize * len(counts) for counts in (self._references, self._free))

    def add(self, leaves: Sequence[Any]) -> int:
        """Stores a step's leaves, checked by `read_leaves`; returns its row, with one reference."""
        if self._free:
            row = self._free.pop()
        else:
            row = self.num_rows
            for column in self.columns:
                if row >= column.shape[0]:
                    arrays.grow(column, row + 1)
            self._references.append(0)
            self.num_rows = row + 1
        for column, leaf in zip(self.columns, leaves, strict=True):
            column[row] = leaf
        self._references[row] = 1
        return row

    def keep_ends(self, first: int, last: int) -> None:
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

    def release_ends(self, first: int, last: int) -> None:
        """Takes back what `keep_ends` added."""
        self.release(first)
        self.release(last)

    def keep_all(self, rows: np.ndarray) -> None:
        """Adds a reference to every row of an array, as often as it occurs there."""
        rows = rows.reshape(-1)
        np.add.at(self._counts(), rows, np.ones(rows.shape, np.int32))

    def release_all(self, rows: np.ndarray) -> None:
        """Takes a reference from every row of an array, as often as it occurs there."""
        rows = rows.reshape(-1)
        counts = self._counts()
        np.subtract.at(counts, rows, np.ones(rows.shape, np.int32))
        for row in np.unique(rows[counts[rows] == 0]).tolist():
            self._free.append(row)

    def _counts(self) -> np.ndarray:
        """The counts as numpy sees them; to be dropped before a row is added, whose count could not be appended."""
        return np.frombuffer(self._references, np.int32)

    def sort_free(self) -> None:
        """Orders the free rows as `refill` does: who saves and goes on then uses them as who restores does."""
        self._free = array.array("q", sorted(self._free, reverse=True))

    def refill(self, columns: list[np.ndarray], num_rows: int, held: Iterable[np.ndarray]) -> None:
        """Takes over saved columns ``[num_rows, ...]`` and counts the references in `held` anew."""
        self.columns = columns
        self.num_rows = num_rows
        self._references = array.array("i", bytes(4 * num_rows))
        self._references[PADDING_ROW] = PADDING_REFERENCES
        for rows in held:
            self.keep_all(rows)
        self._free = array.array("q", np.flatnonzero(self._counts() == 0).tolist()[::-1])


def make_columns(spec: Nest, what: str) -> list[np.ndarray]:
    """Empty columns ``[0, ...]``, one per leaf of `spec`; refuses leaves that are Python objects."""
    for name, leaf in zip(specs.leaf_names(spec), tree.flatten(spec), strict=True):
        if np.dtype(leaf.dtype).hasobject:
            raise ConfigError(
                f"Replay stores arrays of numbers; {what} leaf {name!r} has dtype {leaf.dtype}. Encode it as numbers."
            )
    return [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in tree.flatten(spec)]
