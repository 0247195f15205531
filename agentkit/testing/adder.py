"""A contract that every adder must satisfy on every replay, with hand-computed cases.

Inherit from `AdderContract`, say how a replay is made, and all cases run against it:

    class TestAddersOnMyReplay(AdderContract):
        def make_replay(self, tables):
            return MyReplay(tables)
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import pytest
import tree

from agentkit import nests, specs
from agentkit.adders import EpisodeAdder
from agentkit.errors import ConfigError, SpecError
from agentkit.replay.base import FIRST_PRIORITY, Replay, Writer, check_priority, index_tables
from agentkit.replay.rate_limiter import MinSize
from agentkit.replay.table import Fifo, FromInline, Layout, Select, Table
from agentkit.testing.adder_cases import (
    CASES,
    N_STEP_CASES,
    SPEC,
    AdderCase,
    Episode,
    expected_steps,
    observation,
    play,
    steps_of,
)
from agentkit.types import Nest


def make_table(layout: Layout, name: str = "table", max_size: int = 1000) -> Table:
    """Makes a table that hands out every item once, oldest first."""
    return Table(name, layout, max_size, sampler=Fifo(), remover=Fifo(), rate_limiter=MinSize(1), max_times_sampled=1)


def assert_items(found: Sequence[Nest], expected: Sequence[Nest], signature: Nest) -> None:
    """Checks items for equality bit for bit, and for the shapes and dtypes of `signature`."""
    assert len(found) == len(expected), f"expected {len(expected)} items, found {len(found)}: {found}"
    for i, (item, wanted) in enumerate(zip(found, expected, strict=True)):
        specs.validate(item, signature, f"item {i}")
        tree.assert_same_structure(item, wanted)  # What maps over both takes () for a nest of nothing.
        tree.map_structure_with_path(
            lambda path, x, y, i=i: np.testing.assert_array_equal(x, y, err_msg=f"item {i}, leaf {path}"),
            item,
            wanted,
        )


class RecordedItem(NamedTuple):
    """Holds an item as a `RecordingWriter` received it."""

    table: str
    priority: float
    data: Nest


class RecordingWriter(Writer):
    """Keeps the items it is given in `items`, and holds its caller to the writer's interface."""

    def __init__(self, tables: Sequence[Table], history: int):
        """Makes a writer to `tables`, of one step structure."""
        self._tables = index_tables(tables)
        self._layouts = {table.name: table.layout for table in tables}
        self._step = tables[0].layout.step
        self._history = history
        self._rows: list[Nest] = []
        self._ended = False
        self.items: list[RecordedItem] = []
        self.is_closed = False

    def append(self, step: Nest) -> int:
        """See `Writer`."""
        specs.validate(step, self._step, "step")
        assert not self._ended, "a step was appended behind padding"
        self._rows.append(nests.copy_nest(step))
        return len(self._rows) - 1

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """See `Writer`."""
        layout = self._layouts[table]
        priority = FIRST_PRIORITY if priority is None else priority
        check_priority(table, priority)
        specs.validate(inline, layout.inline, "inline values")
        oldest = max(0, len(self._rows) - self._history)
        assert oldest <= start < stop <= len(self._rows), f"[{start}, {stop}) is not in the history"
        assert layout.length is None or stop - start + padding == layout.length
        self._ended = padding > 0
        zero = specs.zeros(layout.step)
        rows = [tree.flatten(row) for row in self._rows[start:stop] + [zero] * padding]
        values = tree.flatten(inline)

        def leaf(source: Any) -> np.ndarray:
            if isinstance(source, FromInline):
                return np.asarray(values[source.column])
            if source.select is Select.ALL:
                return np.stack([row[source.column] for row in rows])
            return rows[0 if source.select is Select.FIRST else -1][source.column]

        data = tree.map_structure(leaf, layout.data)
        specs.validate(data, layout.signature, "item")
        self.items.append(RecordedItem(table, priority, data))
        return len(self.items) - 1

    def end_episode(self) -> None:
        """See `Writer`."""
        self._rows = []
        self._ended = False

    def flush(self) -> None:
        """See `Writer`."""

    def close(self) -> None:
        """See `Writer`."""
        self.is_closed = True

    def save(self) -> dict[str, Any]:
        """See `Writer`; the items are not in it."""
        rows = {str(i): nests.number_leaves(r) for i, r in enumerate(self._rows)}
        return {"rows": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Writer`."""
        rows = [state["rows"][str(i)] for i in range(len(state["rows"]))]
        self._rows = [tree.unflatten_as(self._step, [row[str(j)] for j in range(len(row))]) for row in rows]


class AdderContract(abc.ABC):
    """Checks every adder in every case on one kind of replay."""

    @abc.abstractmethod
    def make_replay(self, tables: Sequence[Table]) -> Replay:
        """Makes a new replay of these tables."""

    def read(self, replay: Replay, table: str) -> list[Nest]:
        """Returns every item of a table made by `make_table`, oldest first."""
        items: list[Nest] = []
        count = replay.info(table).size
        if count == 0:
            return items
        sampler = replay.sampler(table, 1)
        try:
            for _ in range(count):
                items.append(tree.map_structure(lambda x: x[0], next(sampler).sample.data))
        finally:
            sampler.close()
        return items

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_case(self, case: AdderCase) -> None:
        """Checks that items come out of replay as they were computed by hand."""
        table = make_table(case.layout)
        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer)
            for episode in case.episodes:
                play(adder, episode, nested=case.nested, extras=case.extras)
            adder.close()
            assert_items(self.read(replay, "table"), case.items, table.signature)

    @pytest.mark.parametrize("name", ["3_step_truncated", "pad", "episode_padded"])
    def test_two_tables(self, name: str) -> None:
        """Checks that one adder feeds two tables with the same items."""
        case = next(case for case in CASES if case.name == name)
        tables = [make_table(case.layout, "a"), make_table(case.layout, "b")]
        with self.make_replay(tables) as replay:
            adder = case.make_adder(replay.writer, {"a": None, "b": lambda data: 2.0})
            for episode in case.episodes:
                play(adder, episode)
            adder.close()
            for table in tables:
                assert_items(self.read(replay, table.name), case.items, table.signature)

    @pytest.mark.parametrize("name", ["3_step_longer_episode", "pad", "overlap", "continue", "episode_split"])
    def test_priority_function_sees_the_item(self, name: str) -> None:
        """Checks that a priority function gets the item's data, and that its value arrives in replay."""
        case = next(case for case in CASES if case.name == name)
        table = make_table(case.layout)
        seen: list[Nest] = []

        def priority(data: Nest) -> float:
            seen.append(data)
            return float(len(seen))

        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer, {"table": priority})
            for episode in case.episodes:
                play(adder, episode)
            adder.close()
            assert_items(seen, case.items, table.signature)
            sampler = replay.sampler("table", 1)
            priorities = [next(sampler).sample.info.priority[0] for _ in seen]
            sampler.close()
        assert priorities == [float(i + 1) for i in range(len(seen))]

    @pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
    def test_bad_priority_is_refused(self, bad: float) -> None:
        """Checks that a bad priority is refused before it reaches the table."""
        case = N_STEP_CASES[0]
        with self.make_replay([make_table(case.layout)]) as replay:
            adder = case.make_adder(replay.writer, {"table": lambda data: bad})
            with pytest.raises(SpecError, match="priority must be finite"):
                play(adder, Episode([1]))
            adder.reset()
            adder.close()

    def test_an_environment_may_reuse_its_buffers(self) -> None:
        """Checks that observations are stored as they were observed, whatever the buffer holds later."""
        case = N_STEP_CASES[0]
        table = make_table(case.layout)
        with self.make_replay([table]) as replay:
            adder = case.make_adder(replay.writer)
            buffer = np.zeros(2, np.float32)
            adder.add_first(dm_env.restart(buffer))
            for t, (act, timestep, _) in enumerate(steps_of(case.episodes[0])):
                buffer[:] = observation(t + 1)
                adder.add(act, timestep._replace(observation=buffer))
            buffer[:] = -1
            adder.close()
            assert_items(self.read(replay, "table"), case.items, table.signature)

    def test_close_twice(self) -> None:
        """Checks that an adder may be closed again."""
        case = N_STEP_CASES[0]
        with self.make_replay([make_table(case.layout)]) as replay:
            adder = case.make_adder(replay.writer)
            play(adder, case.episodes[0])
            adder.close()
            adder.close()

    def test_too_long_episode_is_refused(self) -> None:
        """Checks that too_long="error" writes nothing of a too long episode, but all of the next one."""
        table = make_table(EpisodeAdder.layout(SPEC, 2))
        with self.make_replay([table]) as replay:
            adder = EpisodeAdder(replay.writer(EpisodeAdder.history()), SPEC, tables="table", length=2)
            with pytest.raises(ConfigError, match="more than 2 steps"):
                play(adder, Episode([1, 2, 3]))
            adder.reset()
            play(adder, Episode([1, 2]))
            adder.close()
            expected = [expected_steps("^0:1:1", "1:2:0", "2")]
            assert_items(self.read(replay, "table"), expected, table.signature)
