"""Selectors over a table's slots: which item is drawn, or goes. The working side of `table.Selector`."""

from __future__ import annotations

import abc
import heapq

import numpy as np

from agentkit.replay import table as tables
from agentkit.replay.in_process.slots import Slots
from agentkit.replay.in_process.sum_tree import SumTree

MAX_WEIGHT = 1e290
"""Greatest priority**exponent: a billion of them still have a finite sum."""


class SlotSelector(abc.ABC):
    """Selects among the occupied slots of a table."""

    def insert(self, slot: int, priority: float) -> None:  # noqa: B027 (most need not know)
        """Notes that a slot was occupied."""

    def remove(self, slot: int) -> None:  # noqa: B027
        """Notes that a slot is being freed."""

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:  # noqa: B027
        """Notes that the priorities of occupied slots ``[n]`` became `priorities` ``[n]``, in this order."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray | float]:
        """Draws slots ``[count]`` (intp) with replacement; returns them, and the chance each had."""

    def save(self, num_slots: int) -> dict[str, np.ndarray]:
        """Returns the knowledge from `insert`, `remove` and `update` as arrays; slots are below `num_slots`."""
        return {}

    def array_specs(self, size: int, num_slots: int) -> dict[str, tuple[np.dtype, int]]:
        """Returns dtype and length of the arrays of `save`, for a table of `size` items."""
        return {}

    def restore(self, saved: dict[str, np.ndarray]) -> None:  # noqa: B027
        """Restores the state that `save` returned."""


class _Uniform(SlotSelector):
    def __init__(self, slots: Slots):
        self._slots = slots

    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, float]:
        size = self._slots.size
        # A float64 below 1 times a size below 2**53 stays below the size; twice as fast as integers().
        ranks = (rng.random(count) * size).astype(np.intp)
        return self._slots.at(ranks), 1.0 / size


class _ByAge(SlotSelector):
    def __init__(self, slots: Slots, newest: bool):
        self._pick = slots.newest if newest else slots.oldest

    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, float]:
        return np.full(count, self._pick(), np.intp), 1.0


class _Heap(SlotSelector):
    """Entries that no longer hold stay in the heap until they reach the top, or are too many."""

    def __init__(self, sign: float):
        self._sign = sign
        self._clear()

    def _clear(self) -> None:
        self._live: dict[int, tuple[float, int]] = {}  # slot -> (signed priority, stamp)
        self._heap: list[tuple[float, int, int]] = []  # (signed priority, stamp, slot)
        self._stamp = 0

    def insert(self, slot: int, priority: float) -> None:
        entry = (self._sign * priority, self._stamp)
        self._stamp += 1
        self._live[slot] = entry
        heapq.heappush(self._heap, (*entry, slot))
        if len(self._heap) > 2 * len(self._live) + 64:
            self._rebuild()

    def remove(self, slot: int) -> None:
        del self._live[slot]

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        for slot, priority in zip(slots.tolist(), priorities.tolist(), strict=True):
            self.insert(slot, priority)

    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, float]:
        heap = self._heap
        while True:
            priority, stamp, slot = heap[0]
            if self._live.get(slot) == (priority, stamp):
                return np.full(count, slot, np.intp), 1.0
            heapq.heappop(heap)

    def _rebuild(self) -> None:
        self._heap = [(*entry, slot) for slot, entry in self._live.items()]
        heapq.heapify(self._heap)

    def save(self, num_slots: int) -> dict[str, np.ndarray]:
        slots = np.array(list(self._live), np.int64)
        entries = list(self._live.values())
        return {
            "slots": slots,
            "priorities": self._sign * np.array([priority for priority, _ in entries], np.float64),
            # The last one is the next stamp.
            "stamps": np.array([stamp for _, stamp in entries] + [self._stamp], np.int64),
        }

    def array_specs(self, size: int, num_slots: int) -> dict[str, tuple[np.dtype, int]]:
        whole, real = np.dtype(np.int64), np.dtype(np.float64)
        return {"slots": (whole, size), "priorities": (real, size), "stamps": (whole, size + 1)}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self._clear()
        *stamps, self._stamp = saved["stamps"].tolist()
        signed = (self._sign * saved["priorities"]).tolist()
        entries = zip(signed, stamps, strict=True)
        self._live = dict(zip(saved["slots"].tolist(), entries, strict=True))
        self._rebuild()


class _Prioritized(SlotSelector):
    def __init__(self, slots: Slots, exponent: float):
        self._slots = slots
        self._exponent = exponent
        self._tree = SumTree(slots.capacity)

    def insert(self, slot: int, priority: float) -> None:
        self._tree.set(slot, priority**self._exponent if priority > 0 else 0.0)

    def remove(self, slot: int) -> None:
        self._tree.set(slot, 0.0)

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._tree.set_many(slots, np.where(priorities > 0, priorities**self._exponent, 0.0))

    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray | float]:
        uniforms = rng.random(count)
        total = self._tree.total
        if total == 0:
            size = self._slots.size
            return self._slots.at((uniforms * size).astype(np.intp)), 1.0 / size
        slots = self._tree.sample(uniforms)
        return slots, self._tree.get(slots) / total

    def save(self, num_slots: int) -> dict[str, np.ndarray]:
        # The weights themselves: a power taken again might differ in its last bit.
        return {"weights": self._tree.weights(num_slots)}

    def array_specs(self, size: int, num_slots: int) -> dict[str, tuple[np.dtype, int]]:
        return {"weights": (np.dtype(np.float64), num_slots)}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self._tree.fill(saved["weights"])


def make_selector(selector: tables.Selector, slots: Slots) -> SlotSelector:
    """Returns the working selector that a table's description asks for, over `slots`."""
    match selector:
        case tables.Uniform():
            return _Uniform(slots)
        case tables.Fifo():
            return _ByAge(slots, newest=False)
        case tables.Lifo():
            return _ByAge(slots, newest=True)
        case tables.MinHeap():
            return _Heap(1.0)
        case tables.MaxHeap():
            return _Heap(-1.0)
        case tables.Prioritized(exponent):
            return _Prioritized(slots, exponent)
    raise AssertionError(selector)


def max_priority(table: tables.Table) -> float:
    """Returns the greatest priority whose power still fits a table's sum trees; inf without such a tree."""
    exponents = [s.exponent for s in (table.sampler, table.remover) if isinstance(s, tables.Prioritized)]
    return min([MAX_WEIGHT ** (1 / e) for e in exponents if e > 1] + [MAX_WEIGHT] if exponents else [np.inf])


__all__ = ["MAX_WEIGHT", "SlotSelector", "make_selector", "max_priority"]
