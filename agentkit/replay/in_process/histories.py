"""The steps before those of an item, where a layout shows them: which rows they are in (decision 85)."""

from __future__ import annotations

import numpy as np

from agentkit.replay.in_process.step_store import PADDING_ROW, StepStore
from agentkit.replay.table import FromStep, Layout, Select


class Histories:
    """Finds the rows of the histories of one table's items.

    Args:
        layout: of the items.
        store: where their steps are.

    Attributes:
        first: steps before an item's first that are shown, at most.
        last: steps before its last.
    """

    def __init__(self, layout: Layout, store: StepStore):
        self.first = layout.history(Select.FIRST, Select.ALL)
        self.last = layout.history(Select.LAST)
        self._takes_all = layout.takes_all
        self._store = store

    def __bool__(self) -> bool:
        """Returns whether items show any steps before theirs."""
        return self.first > 0 or self.last > 0

    def rows_before(self, first: int, last: int) -> list[int]:
        """Returns the rows that an item from row `first` to row `last` keeps besides its own, one maybe twice."""
        walk = self._store.walk_back
        if not self.last or last == PADDING_ROW:
            return walk(first, self.first)
        rows = walk(last, self.last)
        if first == last or first in rows:  # Most of the history of the first is that of the last, too.
            more = self.first + (0 if first == last else 1 + rows.index(first)) - self.last
            return rows + walk(rows[-1], more) if more > 0 and rows else rows
        return rows + walk(first, self.first)

    def gather(self, first: np.ndarray, last: np.ndarray, rows: np.ndarray) -> dict[Select, np.ndarray]:
        """Returns the rows that each select takes with the longest history there is.

        Args:
            first: rows of the items' first steps, ``[B]``.
            last: of their last.
            rows: of all of them, ``[B, T]``, where any leaf takes ALL.

        Returns:
            intp ``[B, history + 1]``, or ``[B, history + T]`` for ALL, oldest first.
        """
        found = {}
        if self.first:
            found[Select.FIRST] = self._store.histories(first, self.first)
            if self._takes_all:
                found[Select.ALL] = np.concatenate([found[Select.FIRST][:, :-1], rows], axis=1)
        if self.last:
            found[Select.LAST] = self._store.histories(last, self.last)
        return found

    def cut(self, found: dict[Select, np.ndarray], source: FromStep) -> np.ndarray:
        """Returns those of the rows of `gather` that a leaf takes."""
        most = self.last if source.select is Select.LAST else self.first
        return found[source.select][:, most - source.history :]
