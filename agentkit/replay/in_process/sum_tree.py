"""A sum tree of numpy levels: draws from, and changes, many weights at once."""

from __future__ import annotations

import numpy as np

FAN_OUT = 16
TOP = 4096
"""The top level has at most this many nodes; it is searched by its prefix sums."""


class SumTree:
    """Holds weights >= 0 by slot, and draws slots in proportion to them (Schaul et al. 2016, B.2.1).

    A node is always the sum of its children, made anew and never adjusted by differences, so that no
    rounding error builds up and the tree is a function of its weights alone. Changes are noted, and
    sums made when they are next needed.

    Args:
        capacity: slots are below this. Memory grows with the greatest slot set.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._changed: list[np.ndarray] = []
        self._changed_slots: list[int] = []
        self._build(np.zeros(0))

    def _build(self, weights: np.ndarray) -> None:
        """Makes levels with room for at least `weights` ``[n]``."""
        levels = [_padded(weights, FAN_OUT)]
        while levels[-1].shape[0] > TOP:
            levels.append(_padded(levels[-1].reshape(-1, FAN_OUT).sum(axis=1), FAN_OUT))
        self._levels = levels
        self._prefix = np.cumsum(levels[-1])
        self._changed.clear()
        self._changed_slots.clear()

    def _reserve(self, num_slots: int) -> None:
        # The length depends on the greatest slot alone, so that a restored tree adds up in the same order.
        weights = np.zeros(min(self._capacity, 1 << (num_slots - 1).bit_length()))
        known = min(weights.shape[0], self._levels[0].shape[0])
        weights[:known] = self._levels[0][:known]
        self._build(weights)

    def set(self, slot: int, weight: float) -> None:
        """Sets one weight."""
        if slot >= self._levels[0].shape[0]:
            self._reserve(slot + 1)
        self._levels[0][slot] = weight
        self._changed_slots.append(slot)
        if len(self._changed_slots) >= TOP:
            self._sum_up()

    def set_many(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights ``[n]`` of slots that `set` has set before; of repeated slots the last counts."""
        self._levels[0][slots] = weights
        self._changed.append(slots)
        if len(self._changed) >= FAN_OUT:
            self._sum_up()

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Returns the weights ``[n]`` of slots."""
        return self._levels[0].take(slots)

    def weights(self, length: int) -> np.ndarray:
        """Returns the first `length` weights, zero where none was set."""
        known = self._levels[0][:length]
        return np.pad(known, (0, length - known.shape[0]))

    def fill(self, weights: np.ndarray) -> None:
        """Replaces all weights by those ``[n]`` that `weights` returned, n being the slots ever set."""
        self._build(np.zeros(0))
        if len(weights):
            self._reserve(len(weights))
            self._levels[0][: len(weights)] = weights
            self._build(self._levels[0])

    @property
    def total(self) -> float:
        """Returns the sum of all weights."""
        self._sum_up()
        return float(self._prefix[-1])

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        """Returns the slots ``[n]`` that the numbers ``[n]`` in [0, 1) fall on; `total` must be above 0."""
        self._sum_up()
        prefix = self._prefix
        # Rounding may lift a target to the total; just below it, it meets the last positive weight.
        target = np.minimum(uniforms * prefix[-1], np.nextafter(prefix[-1], 0.0))
        node = prefix.searchsorted(target, side="right")
        target -= np.where(node > 0, prefix[node - 1], 0.0)
        count = target.shape[0]
        columns = np.arange(count)
        sums = np.zeros((FAN_OUT + 1, count))  # of a node's first 0, 1, ... children, those of one target in a column
        for level in self._levels[-2::-1]:
            sums[1:] = level.reshape(-1, FAN_OUT).take(node, 0).T
            for i in range(2, FAN_OUT + 1):  # as cumsum adds, in two thirds of its time
                np.add(sums[i - 1], sums[i], out=sums[i])
            np.minimum(target, np.nextafter(sums[-1], 0.0), out=target)
            child = (sums[1:] <= target).sum(axis=0)
            target -= sums.reshape(-1).take(child * count + columns)
            node = node * FAN_OUT + child
        return node

    def _sum_up(self) -> None:
        if self._changed_slots:
            self._changed.append(np.array(self._changed_slots))
            self._changed_slots.clear()
        if not self._changed:
            return
        node = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed.clear()
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            node = node // FAN_OUT
            level[node] = below.reshape(-1, FAN_OUT)[node].sum(axis=1)
        np.cumsum(self._levels[-1], out=self._prefix)


def _padded(values: np.ndarray, multiple: int) -> np.ndarray:
    length = max(multiple, -(-values.shape[0] // multiple) * multiple)
    return np.pad(values, (0, length - values.shape[0]))
