"""Which slots of a table hold items, in order of age, and which is taken next."""

from __future__ import annotations

import array
from typing import Any

import numpy as np

from agentkit.errors import CheckpointError


class Slots:
    """Hands out slots ``0 <= slot < capacity`` and remembers the order in which it did.

    While only the oldest or the newest slot is ever freed, the occupied ones are a ring segment, and
    two numbers say everything. The first other removal switches to linked lists (16 bytes a slot),
    until the table is next empty.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.size = 0
        self._head = 0
        self._used = 0  # slots below this were handed out at least once
        self._ring = True
        self._set_linked(0)

    def _set_linked(self, length: int) -> None:
        # Entry `length - 1` of the linked list is its sentinel: next is the oldest, previous the newest.
        self._next = np.empty(length, np.int32)
        self._previous = np.empty(length, np.int32)
        self._dense = np.empty(max(length - 1, 0), np.int32)  # occupied slots, in no order
        self._place = np.empty(max(length - 1, 0), np.int32)  # where in _dense a slot is
        self._free = array.array("q")

    def add(self) -> int:
        """Occupies a slot, the newest now."""
        size = self.size
        if self._ring:
            slot = self._head + size
            if slot >= self.capacity:
                slot -= self.capacity
        else:
            slot = self._free.pop() if self._free else self._used
            self._link(slot)
        if slot >= self._used:
            self._used = slot + 1
        self.size = size + 1
        return slot

    def add_block(self, count: int) -> np.ndarray:
        """Occupies `count` slots ``[count]`` of a ring, as so many calls of `add` would; there must be room."""
        slots = (self._head + self.size + np.arange(count)) % self.capacity
        self._used = max(self._used, int(slots.max()) + 1)
        self.size += count
        return slots

    def remove(self, slot: int) -> None:
        """Frees an occupied slot."""
        if self._ring:
            if slot == self._head:
                self._head = slot + 1 if slot + 1 < self.capacity else 0
            elif slot != self.newest():
                self._leave_ring()
        if not self._ring:
            self._unlink(slot)
        self.size -= 1
        if self.size == 0:
            self._head = 0
            if not self._ring:
                self._ring = True
                self._set_linked(0)

    @property
    def is_ring(self) -> bool:
        """Returns whether the occupied slots follow one another, oldest first."""
        return self._ring

    def oldest(self) -> int:
        """Returns the slot occupied the longest."""
        return self._head if self._ring else int(self._next[self.capacity])

    def newest(self) -> int:
        """Returns the slot occupied last."""
        if self._ring:
            slot = self._head + self.size - 1
            return slot if slot < self.capacity else slot - self.capacity
        return int(self._previous[self.capacity])

    def at(self, ranks: np.ndarray) -> np.ndarray:
        """Returns the occupied slots ``[n]`` numbered `ranks` (intp, each below `size`), in a fixed numbering."""
        if not self._ring:
            return self._dense.take(ranks)
        if self._head == 0 or self.size == self.capacity:
            return ranks  # where all are occupied, the numbering may start anywhere
        return (ranks + self._head) % self.capacity

    def by_age(self) -> np.ndarray:
        """Returns all occupied slots ``[size]``, oldest first."""
        if self._ring:
            return (self._head + np.arange(self.size)) % self.capacity
        order = np.empty(self.size, np.int64)
        slot = self.capacity
        for i in range(self.size):
            slot = self._next[slot]
            order[i] = slot
        return order

    def _leave_ring(self) -> None:
        order = self.by_age()
        free = np.setdiff1d(np.arange(self._used), order)
        self._ring = False
        self._relink(order, order, free)

    def _relink(self, order: np.ndarray, dense: np.ndarray, free: np.ndarray) -> None:
        self._set_linked(self.capacity + 1)
        circle = np.concatenate([[self.capacity], order, [self.capacity]])
        self._next[circle[:-1]] = circle[1:]
        self._previous[circle[1:]] = circle[:-1]
        self._dense[: len(dense)] = dense
        self._place[dense] = np.arange(len(dense))
        self._free = array.array("q", free.tolist())

    def _link(self, slot: int) -> None:
        sentinel = self.capacity
        last = self._previous[sentinel]
        self._next[last] = self._previous[sentinel] = slot
        self._previous[slot], self._next[slot] = last, sentinel
        self._dense[self.size], self._place[slot] = slot, self.size

    def _unlink(self, slot: int) -> None:
        before, after = self._previous[slot], self._next[slot]
        self._next[before], self._previous[after] = after, before
        moved, place = self._dense[self.size - 1], self._place[slot]
        self._dense[place], self._place[moved] = moved, place
        self._free.append(slot)

    def save(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns plain values, and the arrays that they do not include."""
        values = {"size": self.size, "head": self._head, "used": self._used, "ring": self._ring}
        if self._ring:
            return values, {}
        free = np.asarray(self._free, np.int64)
        dense = self._dense[: self.size].astype(np.int64)
        return values | {"num_free": len(free)}, {"order": self.by_age(), "dense": dense, "free": free}

    @property
    def num_used(self) -> int:
        """Bounds the slots that were ever handed out: all below this were, and none above."""
        return self._used

    @staticmethod
    def array_lengths(values: dict[str, Any]) -> dict[str, int]:
        """Returns names and lengths of the int64 arrays that `save` returned along with `values`."""
        if values["ring"]:
            return {}
        return {"order": values["size"], "dense": values["size"], "free": values["num_free"]}

    def restore(self, values: dict[str, Any], lists: dict[str, np.ndarray]) -> None:
        """Restores the state that `save` returned; refuses an impossible state."""
        size, head, used = (int(values[name]) for name in ("size", "head", "used"))
        good = 0 <= size <= used <= self.capacity and 0 <= head < self.capacity
        if values["ring"]:
            good = good and (head + size <= used or used == self.capacity)
        else:
            everything = np.sort(np.concatenate([lists["order"], lists["free"]]))
            good = good and np.array_equal(everything, np.arange(used))
            good = good and np.array_equal(np.sort(lists["order"]), np.sort(lists["dense"]))
        if not good:
            raise CheckpointError(f"Replay's saved slots contradict each other: {values}.")
        self.size, self._head, self._used, self._ring = size, head, used, bool(values["ring"])
        if not self._ring:
            self._relink(lists["order"], lists["dense"], lists["free"])
