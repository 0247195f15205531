"""One table of an in-process replay: items as row numbers, its selectors, counters and rate limit."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tree

from agentkit.errors import CheckpointError, SpecError
from agentkit.nests import LeafReader, make_builder
from agentkit.replay.base import FIRST_PRIORITY
from agentkit.replay.in_process import arrays
from agentkit.replay.in_process.histories import Histories
from agentkit.replay.in_process.selectors import SlotSelector, make_selector, max_priority
from agentkit.replay.in_process.slots import Slots
from agentkit.replay.in_process.step_store import StepStore, make_columns
from agentkit.replay.table import (
    Fifo,
    FromStep,
    MaxHeap,
    MinHeap,
    Prioritized,
    Select,
    Table,
)
from agentkit.types import DrawnBatch, ReplaySample, SampleInfo, TableInfo

EMPTY = -1
"""What `times_sampled` holds for a slot without an item."""


class ItemTable:
    """Holds the items of one table. Not thread-safe; waiting and locking are its owner's.

    Args:
        table: the description.
        store: where the steps are that items refer to.
        seed: of the sampler and the remover.
    """

    def __init__(self, table: Table, store: StepStore, seed: np.random.SeedSequence):
        self.table = table
        self.store = store
        self.read_inline = LeafReader(table.layout.inline, f"table {table.name!r}: inline values")
        self.max_priority = max_priority(table)
        self.num_inserted = 0
        self.num_sampled = 0
        self.largest_priority = FIRST_PRIORITY
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._max_times = int(table.max_times_sampled)
        # Fifo never chooses the new item, so it may choose before the insert and needs no spare slot.
        self._fifo = isinstance(table.remover, Fifo)
        self._capacity = int(table.max_size) + (0 if self._fifo else 1)
        sources = tree.flatten(table.layout.data)
        self._sources = sources
        self._build = make_builder(table.layout.data)
        self.takes_all = table.layout.takes_all
        width = table.layout.length if self.takes_all and table.layout.length else 2
        self._rows: np.ndarray = np.zeros((0, width), np.int32)  # [n, T], or [n, 2]: the first row and the last
        self._keys: np.ndarray = np.zeros(0, np.int64)  # of the item in a slot, or of the next one
        self._times: np.ndarray = np.zeros(0, np.int32)
        self._ones = np.ones(0, np.int32)
        by_priority = Prioritized | MinHeap | MaxHeap
        uses_priority = isinstance(table.sampler, by_priority) or isinstance(table.remover, by_priority)
        # Made when it is needed: most uniform tables never see a priority but 1.
        self._priorities: np.ndarray | None = np.zeros(0, np.float64) if uses_priority else None
        self._inline = make_columns(table.layout.inline, "inline")
        self._histories = Histories(table.layout, store)
        self._clear()

    def _clear(self) -> None:
        self._slots = Slots(self._capacity)
        self._sampler = make_selector(self.table.sampler, self._slots)
        self._remover = make_selector(self.table.remover, self._slots)
        told = (Prioritized, MinHeap, MaxHeap)
        pairs = ((self.table.sampler, self._sampler), (self.table.remover, self._remover))
        self._selectors: list[SlotSelector] = [s for description, s in pairs if isinstance(description, told)]
        self._draws_left = 0  # times that items may still be drawn; counted with max_times_sampled only

    # --- rate limit ------------------------------------------------------------------------------

    def can_insert(self, num_items: int) -> bool:
        """Returns whether the rate limiter lets `num_items` in now."""
        return self.table.rate_limiter.can_insert(
            num_items, size=self._slots.size, inserted=self.num_inserted, sampled=self.num_sampled
        )

    def can_sample(self, num_items: int) -> bool:
        """Returns whether `num_items` can be drawn now: the limiter allows it, and the items last so long."""
        if self._max_times and self._draws_left < num_items:
            return False
        return self.table.rate_limiter.can_sample(
            num_items, size=self._slots.size, inserted=self.num_inserted, sampled=self.num_sampled
        )

    def info(self) -> TableInfo:
        """Returns the counters now."""
        max_size = int(self.table.max_size)
        return TableInfo(self.table.name, self._slots.size, max_size, self.num_inserted, self.num_sampled)

    def describe(self) -> str:
        """Returns the counters and the limit, for errors."""
        return f"{self.info()}, {self.table.rate_limiter}"

    # --- inserting, removing, updating -----------------------------------------------------------

    def insert(self, priority: float, rows: Sequence[int], inline: Sequence[Any]) -> int:
        """Puts an item in, removing one where the table is full; returns its key.

        Args:
            priority: checked by the caller.
            rows: rows of the step store: all T of them where the layout takes ALL, padding included,
                else the first and the last.
            inline: leaves that `read_inline` returned.
        """
        self.largest_priority = max(self.largest_priority, priority)
        slots = self._slots
        if self._fifo and slots.size >= self._capacity:
            self._remove(slots.oldest())
        slot = slots.add()
        if slot >= self._times.shape[0]:
            self._grow(slot + 1)
        self._rows[slot] = rows
        if self.takes_all:
            self.store.add_references(self._rows[slot])
        else:
            self.store.add_end_references(rows[0], rows[1])
        if self._histories:
            self.store.add_row_references(self._histories.rows_before(int(rows[0]), int(rows[-1])))
        for column, leaf in zip(self._inline, inline, strict=True):
            column[slot] = leaf
        self._times[slot] = 0
        if self._priorities is not None:
            self._priorities[slot] = priority
        elif priority != 1.0:
            self._make_priorities()[slot] = priority
        for selector in self._selectors:
            selector.insert(slot, priority)
        key = int(self._keys[slot])
        self._draws_left += self._max_times
        self.num_inserted += 1
        if slots.size > self.table.max_size:
            self._remove(int(self._remover.sample(self._rng, 1)[0][0]))
        return key

    def insert_block(self, priorities: np.ndarray, rows: np.ndarray, inline: Sequence[np.ndarray]) -> int:
        """Puts in as many of `n` items as the rate limiter lets in now; returns how many, from the first on.

        Args:
            priorities: float64 ``[n]``, checked by the caller; NaN for the largest so far.
            rows: ``[n, T]`` or ``[n, 2]``, of each item what `insert` takes.
            inline: a column ``[n, ...]`` for each leaf.
        """
        count = min(len(priorities), self._capacity)
        while count and not self.can_insert(count):
            count //= 2
        if count == 0:
            return 0
        priorities, rows = priorities[:count], rows[:count]
        given = np.where(np.isnan(priorities), 0.0, priorities)
        largest = np.maximum.accumulate(np.maximum(given, self.largest_priority))
        priorities = np.where(np.isnan(priorities), largest, priorities)
        if not (self._fifo and self._slots.is_ring) or self._histories:  # What goes may depend on what has just come.
            for i, priority in enumerate(priorities.tolist()):
                self.insert(priority, rows[i].tolist(), [column[i] for column in inline])
            return count
        self.largest_priority = float(largest[-1])
        surplus = self._slots.size + count - self._capacity
        if surplus > 0:
            self._remove_oldest(surplus)
        slots = self._slots.add_block(count)
        if (last := int(slots.max())) >= self._times.shape[0]:
            self._grow(last + 1)
        self._rows[slots] = rows
        self.store.add_references(rows)
        for column, leaf in zip(self._inline, inline, strict=True):
            column[slots] = leaf[:count]
        self._times[slots] = 0
        if self._priorities is not None or (priorities != 1.0).any():
            held = self._make_priorities() if self._priorities is None else self._priorities
            held[slots] = priorities
        for selector in self._selectors:
            for slot, priority in zip(slots.tolist(), priorities.tolist(), strict=True):
                selector.insert(slot, priority)
        self._draws_left += count * self._max_times
        self.num_inserted += count
        return count

    def _remove_oldest(self, count: int) -> None:
        slots = []
        for _ in range(count):
            slots.append(self._slots.oldest())
            self._forget(slots[-1])
        self._release(slots)

    def _grow(self, least: int) -> None:
        known = self._times.shape[0]
        columns = [self._times, self._keys, self._rows, *self._inline]
        columns += [] if self._priorities is None else [self._priorities]
        # The wider a row, the fewer are added at once; all columns then have as many as the widest.
        widest = max(columns, key=lambda column: column.itemsize * math.prod(column.shape[1:]))
        arrays.grow(widest, least, self._capacity)
        for column in columns:
            if column is not widest:
                arrays.grow(column, len(widest), len(widest))
        # Reuse of a slot adds the capacity, so a key names its slot and no two items share one.
        self._keys[known:] = np.arange(known, len(widest)) + self._capacity
        self._times[known:] = EMPTY

    def _make_priorities(self) -> np.ndarray:
        self._priorities = np.ones(self._times.shape[0], np.float64)
        return self._priorities

    def _remove(self, slot: int) -> None:
        self._forget(slot)
        if self._histories:
            self._release([slot])
        elif self.takes_all:
            self.store.release_references(self._rows[slot])
        else:
            self.store.release_end_references(*self._rows[slot].tolist())

    def _release(self, slots: Sequence[int] | np.ndarray) -> None:
        """Takes back the references of items that are gone, or are to go."""
        before = [row for slot in slots for row in self._rows_before(slot)] if self._histories else []
        self.store.release_references(self._rows[slots])
        for row in before:
            self.store.release(row)

    def _rows_before(self, slot: int) -> list[int]:
        return self._histories.rows_before(int(self._rows[slot, 0]), int(self._rows[slot, -1]))

    def _forget(self, slot: int) -> None:
        """Removes an item, and keeps its rows for the batch that it is still to be in."""
        for selector in self._selectors:
            selector.remove(slot)
        self._slots.remove(slot)
        if self._max_times:
            self._draws_left -= self._max_times - int(self._times[slot])
        self._times[slot] = EMPTY
        self._keys[slot] += self._capacity

    def check_power(self, priority: float) -> None:
        """Refuses a priority whose power would overflow a sum tree of this table."""
        if priority > self.max_priority:
            raise SpecError(
                f"Table {self.table.name!r}: a priority of {priority:g} is too great for {self.table.sampler}, "
                f"{self.table.remover}; at most {self.max_priority:g} fits. Scale it down."
            )

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities ``[n]``, checked by the caller; unknown keys are passed over.

        Of a key given twice the last priority counts.
        """
        wanted = np.asarray(keys).astype(np.uint64, copy=False)
        values = np.asarray(priorities, np.float64)
        slots = (wanted % np.uint64(self._capacity)).astype(np.intp)
        known = slots < self._times.shape[0]
        candidates = np.where(known, slots, 0) if self._times.shape[0] else slots[:0]
        if not candidates.size:
            return
        known &= self._keys.view(np.uint64).take(candidates) == wanted
        known &= self._times.take(candidates) != EMPTY
        if not known.all():
            slots, values = slots[known], values[known]
        if not slots.size:
            return
        self.largest_priority = max(self.largest_priority, float(values.max()))
        column = self._priorities if self._priorities is not None else self._make_priorities()
        column[slots] = values
        for selector in self._selectors:
            selector.update(slots, values)

    def reset(self) -> None:
        """Removes every item and zeroes the counters; keys go on, so that old ones name nothing."""
        slots = self._slots.by_age()
        self._release(slots)
        self._keys[slots] += self._capacity
        self._times[:] = EMPTY
        self.num_inserted = self.num_sampled = 0
        self.largest_priority = FIRST_PRIORITY
        self._clear()

    # --- sampling --------------------------------------------------------------------------------

    def sample(self, count: int) -> DrawnBatch:
        """Draws `count` items; the caller has asked `can_sample`."""
        self.num_sampled += count
        if self._max_times:
            return self._sample_one_by_one(count)
        slots, chance = self._sampler.sample(self._rng, count)
        if self._ones.shape[0] != count:
            self._ones = np.ones(count, np.int32)
        np.add.at(self._times, slots, self._ones)  # with an array of its dtype a fifth of the time
        probability = chance if isinstance(chance, np.ndarray) else _full(count, chance, np.float64)
        table_size = _full(count, self._slots.size, np.int64)
        info = self._info(slots, probability, table_size, self._times.take(slots))
        return DrawnBatch(self._keys.take(slots).view(np.uint64), ReplaySample(info, self._gather(slots)))

    def _sample_one_by_one(self, count: int) -> DrawnBatch:
        """Draws in turn, since an item that was drawn often enough is not there for the next draw."""
        slots, table_size = np.empty(count, np.intp), np.empty(count, np.int64)
        probability, times = np.empty(count, np.float64), np.empty(count, np.int32)
        keys = np.empty(count, np.int64)
        spent: list[int] = []
        for i in range(count):
            drawn, chance = self._sampler.sample(self._rng, 1)
            slot = int(drawn[0])
            slots[i], table_size[i], keys[i] = slot, self._slots.size, self._keys[slot]
            probability[i] = chance if isinstance(chance, float) else chance[0]
            self._times[slot] += 1
            times[i] = self._times[slot]
            self._draws_left -= 1
            if times[i] >= self._max_times:
                self._forget(slot)
                spent.append(slot)
        sample = ReplaySample(self._info(slots, probability, table_size, times), self._gather(slots))
        if spent:
            self._release(spent)
        return DrawnBatch(keys.view(np.uint64), sample)

    def _info(
        self,
        slots: np.ndarray,
        probability: np.ndarray,
        table_size: np.ndarray,
        times: np.ndarray,
    ) -> SampleInfo:
        if self._priorities is None:
            priority = _full(slots.shape[0], 1.0, np.float64)
        else:
            priority = self._priorities.take(slots)
        return SampleInfo(probability, table_size, priority, times)

    def _gather(self, slots: np.ndarray) -> Any:
        """Returns the data of the items in `slots` ``[B]``: leaves ``[B, ...]``."""
        rows = self._rows.take(slots, 0)  # [B, T] or [B, 2]
        # As `take` wants them, once and not at each use.
        first, last = rows[:, 0].astype(np.intp), rows[:, -1].astype(np.intp)
        if self.takes_all:
            rows = rows.astype(np.intp)
        at = {Select.FIRST: first, Select.LAST: last, Select.ALL: rows}
        past = self._histories.gather(first, last, rows) if self._histories else {}
        columns = self.store.columns
        leaves = []
        for source in self._sources:
            if not isinstance(source, FromStep):
                leaves.append(self._inline[source.column].take(slots, 0))
            elif not source.history:
                leaves.append(columns[source.column].take(at[source.select], 0))
            else:
                leaves.append(columns[source.column].take(self._histories.cut(past, source), 0))
        return self._build(iter(leaves))

    def contents(self) -> tuple[Any, np.ndarray]:
        """Returns the data of all items, oldest first, and `held_rows`."""
        slots = self._slots.by_age()
        return self._gather(slots), self._rows[slots]

    # --- saving ----------------------------------------------------------------------------------

    def held_rows(self) -> Iterator[np.ndarray]:
        """Yields the rows that the items refer to: ``[size, T or 2]``, and of each item the rows of its history."""
        slots = self._slots.by_age()
        yield self._rows[slots]
        if self._histories:
            for slot in slots:
                yield np.array(self._rows_before(slot), np.int64)

    @property
    def nbytes(self) -> int:
        """Returns the memory of the items' own columns, in bytes; selectors excluded."""
        columns = [self._rows, self._keys, self._times, *self._inline]
        return sum(column.nbytes for column in columns) + (0 if self._priorities is None else self._priorities.nbytes)

    def save(self, directory: pathlib.Path, prefix: str) -> dict[str, Any]:
        """Writes arrays named `prefix`... into `directory`; returns the rest, for JSON."""
        used = self._num_keys()
        values, order = self._slots.save()
        found: dict[str, np.ndarray] = {f"slots.{name}": array for name, array in order.items()}
        for role, selector in (("sampler", self._sampler), ("remover", self._remover)):
            found |= {f"{role}.{name}": array for name, array in selector.save(values["used"]).items()}
        for name, column in self._columns().items():
            found[name] = column[:used]
        return {
            "num_inserted": self.num_inserted,
            "num_sampled": self.num_sampled,
            "largest_priority": self.largest_priority,
            "draws_left": self._draws_left,
            "num_keys": used,
            "has_priorities": self._priorities is not None,
            "slots": values,
            "rng": self._rng.bit_generator.state,
            "arrays": {name: arrays.write(directory, f"{prefix}{name}", x) for name, x in found.items()},
        }

    def _num_keys(self) -> int:
        """Slots that ever gave out a key, since the table was made and not just since `reset`."""
        fresh = np.arange(self._keys.shape[0]) + self._capacity
        touched = np.flatnonzero(self._keys != fresh)
        return max(self._slots.num_used, int(touched[-1]) + 1 if touched.size else 0)

    def _columns(self) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {"rows": self._rows, "keys": self._keys, "times": self._times}
        if self._priorities is not None:
            columns["priorities"] = self._priorities
        return columns | {f"inline.{i}": column for i, column in enumerate(self._inline)}

    def restore(self, directory: pathlib.Path, prefix: str, state: dict[str, Any], saved_size: int) -> None:
        """Restores the contents that `save` wrote into this new table; the caller then counts the rows.

        Args:
            directory: see `save`.
            prefix: see `save`.
            state: what it returned.
            saved_size: `Table.max_size` then; of a queue it may be another one now.
        """

        def load(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
            return arrays.read(directory, f"{prefix}{name}", state["arrays"][name], dtype, shape)

        values, used = state["slots"], int(state["num_keys"])
        whole = np.dtype(np.int64)
        if state["has_priorities"] and self._priorities is None:
            self._make_priorities()
        columns = {n: load(n, x.dtype, (used, *x.shape[1:])) for n, x in self._columns().items()}
        order = {name: load(f"slots.{name}", whole, (n,)) for name, n in Slots.array_lengths(values).items()}
        if saved_size == self.table.max_size:
            self._slots.restore(values, order)
        else:
            columns, used = self._lay_anew(values, order, columns, saved_size)
        size, num_slots = self._slots.size, self._slots.num_used
        for role, selector in (("sampler", self._sampler), ("remover", self._remover)):
            wanted = selector.array_specs(size, num_slots)
            selector.restore({n: load(f"{role}.{n}", dtype, (k,)) for n, (dtype, k) in wanted.items()})
        self._rows, self._keys, self._times = (columns[name] for name in ("rows", "keys", "times"))
        self._priorities = columns.get("priorities")
        self._inline = [columns[f"inline.{i}"] for i in range(len(self._inline))]
        self.num_inserted, self.num_sampled = int(state["num_inserted"]), int(state["num_sampled"])
        self.largest_priority = self._read_largest(state)
        self._draws_left = int(state["draws_left"])
        self._rng.bit_generator.state = state["rng"]
        occupied = np.zeros(used, bool)
        occupied[self._slots.by_age()] = True
        if not np.array_equal(occupied, self._times != EMPTY):
            raise CheckpointError(
                f"Replay checkpoint {directory}, table {self.table.name!r}: its slots and items disagree. "
                "It is damaged: restore an older one."
            )

    def _lay_anew(
        self, values: dict[str, Any], order: dict[str, np.ndarray], columns: dict[str, np.ndarray], saved_size: int
    ) -> tuple[dict[str, np.ndarray], int]:
        """Takes slots for the items of a queue that had other room; returns their columns, and how many they are."""
        saved = Slots(saved_size)
        saved.restore(values, order)
        by_age = saved.by_age()
        if (count := len(by_age)) > self._capacity:
            raise CheckpointError(
                f"Replay table {self.table.name!r} has room for {self._capacity} items, and {count} were saved. "
                "Restore them into one with more room."
            )
        columns = {name: column[by_age] for name, column in columns.items()}
        first = (int(columns["keys"].max(initial=0)) // self._capacity + 1) * self._capacity
        columns["keys"] = first + np.arange(count)  # A key names its slot: see `_grow`.
        if count:
            self._slots.add_block(count)
        return columns, count

    def _read_largest(self, state: dict[str, Any]) -> float:
        """Returns the saved largest priority; of a checkpoint from before it was kept, that of the items there are."""
        found = state.get("largest_priority")
        if found is None:
            held = () if self._priorities is None else self._priorities[self._slots.by_age()]
            found = max([FIRST_PRIORITY, *held])
        return float(found)


def _full(count: int, value: float, dtype: Any) -> np.ndarray:
    array = np.empty(count, dtype)  # with fill, half the time of np.full
    array.fill(value)
    return array
