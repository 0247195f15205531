"""Batches out of data that stay as they are: items as an adder makes them, drawn uniformly, for ever."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np
import tree

from agentkit import specs
from agentkit.core import BatchPlan
from agentkit.errors import CheckpointError, ConfigError
from agentkit.nests import LeafReader, make_builder
from agentkit.replay.base import Writer, check_steps
from agentkit.replay.in_process import arrays
from agentkit.replay.in_process.step_store import make_columns
from agentkit.replay.table import FromStep, Select, Table
from agentkit.types import DrawnBatch, Nest, ReplaySample, SampleInfo, Seed


class Items(Protocol):
    """Holds data that batches are drawn from: N items, each a nest of arrays."""

    def __len__(self) -> int:
        """Returns N."""
        ...

    def take(self, indices: np.ndarray) -> Nest:
        """Returns the items of these numbers ``[B]``, leaves ``[B, ...]``."""
        ...


@final
class Columns:
    """Holds items that are rows of columns: any nest of arrays ``[N, ...]``, such as a `Transition` of them."""

    def __init__(self, data: Nest):
        """Takes the columns, which are not copied.

        Raises:
            ConfigError: they are of several lengths.
        """
        self._data = data
        lengths = {len(leaf) for leaf in tree.flatten(data)}
        if len(lengths) != 1:
            raise ConfigError(f"Expected columns of one length, found {sorted(lengths)}.")
        (self._size,) = lengths

    def __len__(self) -> int:
        """Returns N."""
        return self._size

    def take(self, indices: np.ndarray) -> Nest:
        """Returns the rows of these numbers."""
        return tree.map_structure(lambda leaf: leaf[indices], self._data)


@final
class ItemStore:
    """Holds items as an adder writes them: each step stored once, an item the numbers of its first and last step.

    Made for `Agent.make_adder`, which takes it for a replay:

        store = ItemStore(table)
        adder = agent.make_adder(store, environment_spec)
        add_episode(adder, episode)
    """

    def __init__(self, table: Table):
        """Makes an empty one.

        Args:
            table: says how items are made.

        Raises:
            ConfigError: its items are sequences of steps.
        """
        if table.layout.takes_all:
            raise ConfigError(
                f"Expected items of transitions, found {table.layout.length} steps in an item of table "
                f"{table.name!r}. Use an agent that learns from transitions, such as td3_bc or iql."
            )
        self.table = table
        self.sources = tree.flatten(table.layout.data)
        self._build = make_builder(table.layout.data)
        self._steps = make_columns(table.layout.step, "step")
        self._inline = make_columns(table.layout.inline, "inline")
        self._ends = np.zeros((0, 2), np.int64)
        # Before each step of an episode; the first of all is a step of zeros, which stands before each.
        self._before = np.zeros(0, np.int64)
        self._num_steps = self._size = 0
        self.add_step(tree.flatten(specs.zeros(table.layout.step)), 0)

    def __len__(self) -> int:
        """Returns N."""
        return self._size

    def writer(self, history: int, *, timeout: float | None = None) -> Writer:
        """Makes a writer; see `Replay.writer`."""
        del timeout  # Nothing is waited for.
        return _StoreWriter(self, history)

    def add_step(self, leaves: Any, before: int) -> int:
        """Stores a step; returns its number.

        Args:
            leaves: of the step.
            before: number of the step before it in its episode, or 0.
        """
        row = self._num_steps
        _put([self._before, *self._steps], row, [before, *leaves])
        self._num_steps = row + 1
        return row

    def add_item(self, first: int, last: int, inline: Any) -> int:
        """Stores an item from step `first` to step `last`; returns its number."""
        row = self._size
        _put([self._ends], row, [(first, last)])
        _put(self._inline, row, inline)
        self._size = row + 1
        return row

    def take(self, indices: np.ndarray) -> Nest:
        """Returns the items of these numbers."""
        first, last = self._ends[indices].T

        def leaf(source: Any) -> np.ndarray:
            if not isinstance(source, FromStep):
                return self._inline[source.column][indices]
            rows = first if source.select is Select.FIRST else last
            return self._steps[source.column][self._with_history(rows, source.history) if source.history else rows]

        return self._build(iter([leaf(source) for source in self.sources]))

    def _with_history(self, rows: np.ndarray, history: int) -> np.ndarray:
        """Returns the numbers of so many steps before each, and of those themselves, ``[B, history + 1]``."""
        found = [rows]
        for _ in range(history):
            found.append(self._before[found[-1]])
        return np.stack(found[::-1], axis=1)


def _put(columns: Any, row: int, leaves: Any) -> None:
    for column, leaf in zip(columns, leaves, strict=True):
        if row >= column.shape[0]:
            arrays.grow(column, row + 1)
        column[row] = leaf


@final
class _StoreWriter(Writer):
    """Appends to an `ItemStore`."""

    def __init__(self, store: ItemStore, history: int):
        self._store = store
        self._history = history
        self._read_step = LeafReader(store.table.layout.step, "step")
        self._read_inline = LeafReader(store.table.layout.inline, "inline values")
        self._rows: list[int] = []  # of this episode

    def append(self, step: Nest) -> int:
        self._rows.append(self._store.add_step(self._read_step(step), self._rows[-1] if self._rows else 0))
        return len(self._rows) - 1

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int:
        del priority  # All are drawn alike.
        if table != self._store.table.name:
            raise ConfigError(f"Expected items of table {self._store.table.name!r}, found one of {table!r}.")
        check_steps(self._store.table, len(self._rows), self._history, start, stop, padding)
        return self._store.add_item(self._rows[start], self._rows[stop - 1], self._read_inline(inline))

    def end_episode(self) -> None:
        self._rows = []

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def save(self) -> dict[str, Any]:
        raise CheckpointError("Data that are read from a file are not saved; read them again.")

    def restore(self, state: dict[str, Any]) -> None:
        raise CheckpointError(f"Data that are read from a file are not restored; found {sorted(state)}.")


@final
class TransitionsDataset:
    """Draws batches for ever, uniformly and with replacement: an iterator and a `Saveable`.

    With K = `plan.num_updates` > 1, leaves are ``[K, B, ...]`` for one `lax.scan`, else ``[B, ...]``. `info` is as
    replay's uniform sampler gives it; the keys are the items' numbers.

    Attributes:
        num_sampled: items handed out so far.
    """

    def __init__(self, items: Items, plan: BatchPlan, seed: Seed = 0):
        """Makes a `TransitionsDataset`.

        Args:
            items: at least one.
            plan: batch size and number of stacked batches.
            seed: of what is drawn.

        Raises:
            ConfigError: there are no items, or the plan asks for none.
        """
        if len(items) < 1:
            raise ConfigError("Expected at least 1 item to draw batches from, found none.")
        if plan.batch_size < 1 or plan.num_updates < 1:
            raise ConfigError(f"Expected batches of at least 1 item, found {plan}.")
        self._items = items
        self._plan = plan
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._times = np.zeros(len(items), np.int32)
        self.num_sampled = 0

    def __len__(self) -> int:
        """Returns the number of items."""
        return len(self._items)

    def __iter__(self) -> Iterator[DrawnBatch]:
        return self

    def __next__(self) -> DrawnBatch:
        """Returns the next batch."""
        plan, size = self._plan, len(self._items)
        count = plan.batch_size * plan.num_updates
        indices = self._rng.integers(size, size=count)
        np.add.at(self._times, indices, np.int32(1))
        self.num_sampled += count
        info = SampleInfo(
            probability=np.full(count, 1.0 / size),
            table_size=np.full(count, size, np.int64),
            priority=np.ones(count),
            times_sampled=self._times[indices],
        )
        batch = DrawnBatch(indices.astype(np.uint64), ReplaySample(info, self._items.take(indices)))
        if plan.num_updates == 1:
            return batch
        return tree.map_structure(lambda x: x.reshape(plan.num_updates, plan.batch_size, *x.shape[1:]), batch)

    def ready(self) -> bool:
        """Returns True, always."""
        return True

    def close(self) -> None:
        """Has nothing to free."""

    def fingerprint(self) -> dict[str, int]:
        """Returns a fingerprint of these data: their number, and a checksum of up to 1,000 of them."""
        some = np.unique(np.linspace(0, len(self._items) - 1, 1_000).astype(np.int64))
        checksum = 0
        for leaf in tree.flatten(self._items.take(some)):
            checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
        return {"size": len(self._items), "checksum": checksum}

    def save(self) -> dict[str, Any]:
        """Returns the state of the drawing; not the data."""
        state = self._rng.bit_generator.state
        words = {name: str(value) for name, value in state["state"].items()}  # 128 bits
        return {
            "data": self.fingerprint(),
            "num_sampled": self.num_sampled,
            "times_sampled": self._times.copy(),
            "rng": {**words, "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]},
        }

    def check_same_data(self, state: dict[str, Any]) -> None:
        """Refuses a state that `save` returned with other data, and changes nothing.

        Raises:
            CheckpointError: it was.
        """
        if state.get("data") != self.fingerprint():
            raise CheckpointError(
                f"The checkpoint was made with the data {state.get('data')}, and these are {self.fingerprint()}. "
                "Resume with the same file, discount and n_step, and the same wrappers for training only."
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: it was saved with other data, or is damaged.
        """
        self.check_same_data(state)
        try:
            rng = state["rng"]
            self._rng.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {name: int(rng[name]) for name in ("state", "inc")},
                "has_uint32": rng["has_uint32"],
                "uinteger": rng["uinteger"],
            }
            self._times = np.array(state["times_sampled"], np.int32).reshape(len(self._items))
            self.num_sampled = int(state["num_sampled"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"The data set's state is damaged: {error!r}. Restore an older one.") from error
