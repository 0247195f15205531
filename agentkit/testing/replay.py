"""What every replay backend must do: a test class that a backend's own tests inherit.

Example::

    class TestInProcessReplay(ReplayContract):
        resumable = True

        def make_replay(self, tables, **kwargs):
            return InProcessReplay(tables, **kwargs)

Backends may be asynchronous: every case flushes the writer before it looks at a table, and makes a
new sampler after it changed one, since a sampler may hold items that it fetched ahead of time.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree

from agentkit import errors, specs
from agentkit.replay.base import Replay, Writer
from agentkit.replay.rate_limiter import MinSize, Queue, SampleToInsertRatio, Stack
from agentkit.replay.table import (
    Fifo,
    FromInline,
    FromStep,
    Layout,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Select,
    Selector,
    Table,
    Uniform,
)

CHI_SQUARE_LIMIT_9 = 42.0
"""A chi-square statistic of 9 degrees of freedom exceeds this once in about 300,000 runs."""

SHORT = 0.3
"""Seconds to wait for what must not come."""

LONG = 20.0
"""Seconds to wait for what must come."""


class Pair(NamedTuple):
    """The data of `pair_layout`: leaves ``[B, ...]`` when sampled."""

    first: Any
    action: Any
    value: Any
    last: Any


def pair_layout() -> Layout:
    """Items of any number of steps: first and last observation, first action, an inline value."""
    return Layout(
        step={"observation": specs.Array((2,), np.float32), "action": specs.Array((), np.int32)},
        data=Pair(
            first=FromStep(1, Select.FIRST),
            action=FromStep(0, Select.FIRST),
            value=FromInline(0),
            last=FromStep(1, Select.LAST),
        ),
        inline=specs.Array((), np.float32, "value"),
    )


def sequence_layout(length: int) -> Layout:
    """Items of `length` steps of the same structure as `pair_layout`'s."""
    return Layout(
        step=pair_layout().step,
        data={"action": FromStep(0, Select.ALL), "observation": FromStep(1, Select.ALL)},
        length=length,
    )


def pair_table(name: str = "pairs", max_size: int = 100, **kwargs: Any) -> Table:
    """A table of `pair_layout` items; keywords are `Table`'s."""
    return Table(name, pair_layout(), max_size, **kwargs)


def make_step(number: int) -> dict[str, Any]:
    """A step that says which number it is: action ``[]`` and observation ``[2]``."""
    return {
        "observation": np.array([number, -number], np.float32),
        "action": np.int32(number),
    }


def write_pairs(
    writer: Writer, table: str, numbers: Sequence[int], priorities: Sequence[float] | np.ndarray = ()
) -> None:
    """Writes one single-step item per number (its step and value are the number) and flushes."""
    for i, number in enumerate(numbers):
        index = writer.append(make_step(number))
        priority = float(priorities[i]) if len(priorities) else 1.0
        writer.create_item(table, priority, index, index + 1, inline=np.float32(number))
    writer.flush()


def draw(replay: Replay, table: str, count: int, batch_size: int = 1) -> list[tuple[int, Any]]:
    """Draws `count` items with a new sampler: (number, info of one item) of each, in order."""
    sampler = replay.sampler(table, batch_size, timeout=LONG)
    drawn: list[tuple[int, Any]] = []
    try:
        while len(drawn) < count:
            sample = next(sampler)
            for i in range(batch_size):
                info = tree.map_structure(lambda x, i=i: x[i], sample.info)
                drawn.append((int(sample.data.action[i]), info))
    finally:
        sampler.close()
    return drawn


def numbers(drawn: Sequence[tuple[int, Any]]) -> list[int]:
    """The numbers of what `draw` returned."""
    return [number for number, _ in drawn]


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic of observed `counts` ``[K]`` against `probabilities` ``[K]``."""
    expected = counts.sum() * np.asarray(probabilities, np.float64)
    return float(((counts - expected) ** 2 / expected).sum())


def wait_until(condition: Callable[[], bool]) -> bool:
    """Polls until `condition` holds or `LONG` seconds have passed; says whether it does."""
    deadline = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


BAD_CALLS: list[tuple[str, type[Exception], str, Callable[[Replay, Writer], Any]]] = [
    (
        "step of wrong shape",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.zeros(3, np.float32), "action": np.int32(0)}),
    ),
    (
        "step of wrong dtype",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.zeros(2, np.float64), "action": np.int32(0)}),
    ),
    (
        "python float for float32",
        errors.SpecError,
        "action",
        lambda r, w: w.append({"observation": np.zeros(2, np.float32), "action": 1.0}),
    ),
    (
        "step leaf missing",
        errors.SpecError,
        "structure",
        lambda r, w: w.append({"observation": np.zeros(2, np.float32)}),
    ),
    (
        "step leaf renamed",
        errors.SpecError,
        "structure",
        lambda r, w: w.append({"obs": np.zeros(2, np.float32), "action": np.int32(0)}),
    ),
    ("step of another structure", errors.SpecError, "structure", lambda r, w: w.append([1, 2, 3])),
    ("step of None", errors.SpecError, "", lambda r, w: w.append(None)),
    (
        "step of strings",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.array(["a", "b"]), "action": np.int32(0)}),
    ),
    (
        "unknown table",
        errors.UnknownNameError,
        "pairs",
        lambda r, w: w.create_item("pears", 1.0, 4, 5, np.float32(0)),
    ),
    (
        "priority NaN",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", float("nan"), 4, 5, np.float32(0)),
    ),
    (
        "priority negative",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", -1.0, 4, 5, np.float32(0)),
    ),
    (
        "priority infinite",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", float("inf"), 4, 5, np.float32(0)),
    ),
    ("inline missing", errors.SpecError, "inline", lambda r, w: w.create_item("pairs", 1.0, 4, 5)),
    (
        "inline of wrong dtype",
        errors.SpecError,
        "inline",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, 0.5),
    ),
    (
        "inline of wrong shape",
        errors.SpecError,
        "inline",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, np.zeros(1, np.float32)),
    ),
    (
        "range past the last step",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, 0, 99, np.float32(0)),
    ),
    (
        "range out of the history",
        errors.SpecError,
        "history",
        lambda r, w: w.create_item("pairs", 1.0, 0, 5, np.float32(0)),
    ),
    (
        "range negative",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, -1, 1, np.float32(0)),
    ),
    ("range empty", errors.SpecError, "step", lambda r, w: w.create_item("pairs", 1.0, 4, 4, np.float32(0))),
    (
        "range reversed",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, 4, 3, np.float32(0)),
    ),
    (
        "padding negative",
        errors.SpecError,
        "padding",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, np.float32(0), padding=-1),
    ),
    ("too few steps", errors.SpecError, "3", lambda r, w: w.create_item("sequences", 1.0, 3, 5)),
    ("too many steps", errors.SpecError, "3", lambda r, w: w.create_item("sequences", 1.0, 2, 5, padding=1)),
    (
        "sampler of unknown table",
        errors.UnknownNameError,
        "sequences",
        lambda r, w: r.sampler("sequence", 1),
    ),
    ("batch of zero", errors.ConfigError, "batch", lambda r, w: r.sampler("pairs", 0)),
    ("batch larger than the table", errors.ConfigError, "batch", lambda r, w: r.sampler("pairs", 101)),
    (
        "batch that the rate limit can never let through",
        errors.ConfigError,
        "batch",
        lambda r, w: r.sampler("limited", 9),
    ),
    (
        "sampler timeout negative",
        errors.ConfigError,
        "timeout",
        lambda r, w: r.sampler("pairs", 1, timeout=-1.0),
    ),
    (
        "sampler timeout infinite",
        errors.ConfigError,
        "timeout",
        lambda r, w: r.sampler("pairs", 1, timeout=float("inf")),
    ),
    ("history of zero", errors.ConfigError, "history", lambda r, w: r.writer(0)),
    ("writer timeout NaN", errors.ConfigError, "timeout", lambda r, w: r.writer(1, timeout=float("nan"))),
    ("info of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.info("pair")),
    ("reset of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.reset("pair")),
    ("can_insert of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.can_insert("pair")),
    (
        "update of unknown table",
        errors.UnknownNameError,
        "pairs",
        lambda r, w: r.update_priorities("pair", np.zeros(1, np.uint64), np.ones(1)),
    ),
    (
        "update to NaN",
        errors.SpecError,
        "priority",
        lambda r, w: r.update_priorities("pairs", np.zeros(2, np.uint64), np.array([1.0, np.nan])),
    ),
    (
        "update to a negative priority",
        errors.SpecError,
        "priority",
        lambda r, w: r.update_priorities("pairs", np.zeros(1, np.uint64), np.array([-1e-9])),
    ),
    (
        "update of other shape",
        errors.SpecError,
        "shape",
        lambda r, w: r.update_priorities("pairs", np.zeros(2, np.uint64), np.ones(3)),
    ),
]
"""(name, error class, what its message holds, the call), on the replay of `bad_call_tables`."""


def bad_call_tables() -> list[Table]:
    """The tables of `BAD_CALLS`, to be written by a writer of history 3 after five steps."""
    return [
        pair_table(sampler=Prioritized(1.0)),
        Table("sequences", sequence_layout(3), 100),
        pair_table("limited", rate_limiter=SampleToInsertRatio(1.0, 4, 4.0)),
    ]


class ReplayContract:
    """Inherit from this, name the class Test..., and write `make_replay`.

    Attributes:
        resumable: what the backend's `Replay.resumable` must be.
        prefetches: True where a sampler draws ahead of what it was asked for, so that `num_sampled`
            may exceed, and a rate limit may have let through, what the caller received.
    """

    resumable = False
    prefetches = False

    def make_replay(self, tables: Sequence[Table], **kwargs: Any) -> Replay:
        """A new replay of these tables; keywords are those every backend takes (`default_timeout`)."""
        raise NotImplementedError

    @contextlib.contextmanager
    def opened(
        self, *tables: Table, history: int = 1, timeout: float = LONG
    ) -> Iterator[tuple[Replay, Writer]]:
        """A replay and a writer on it, closed in the right order."""
        with self.make_replay(list(tables), default_timeout=timeout) as replay:
            writer = replay.writer(history, timeout=timeout)
            yield replay, writer
            # A writer with items that a rate limit holds back cannot flush; the replay goes anyway.
            with contextlib.suppress(errors.ReplayTimeoutError):
                writer.close()

    # --- what is written is what is read ---------------------------------------------------------

    def test_pairs_take_first_last_and_inline(self) -> None:
        with self.opened(pair_table(sampler=Fifo(), max_times_sampled=1), history=3) as (replay, writer):
            for i in range(5):
                assert writer.append(make_step(i)) == i
                if i >= 2:
                    writer.create_item("pairs", 1.0, i - 2, i + 1, inline=np.float32(10 * i))
            writer.flush()
            sampler = replay.sampler("pairs", 3)
            sample = next(sampler)
            sampler.close()
            assert type(sample.data) is Pair
            np.testing.assert_array_equal(sample.data.first, [[0, 0], [1, -1], [2, -2]])
            np.testing.assert_array_equal(sample.data.last, [[2, -2], [3, -3], [4, -4]])
            np.testing.assert_array_equal(sample.data.action, [0, 1, 2])
            np.testing.assert_array_equal(sample.data.value, [20, 30, 40])
            for leaf, spec in zip(sample.data, replay.table("pairs").signature, strict=True):
                assert leaf.dtype == spec.dtype and leaf.shape == (3, *spec.shape)
            dtypes = [np.asarray(x).dtype.name for x in sample.info]
            assert dtypes == ["uint64", "float64", "int64", "float64", "int32"]
            assert all(x.shape == (3,) for x in sample.info)
            assert len(set(sample.info.key.tolist())) == 3

    def test_sequences_take_all_steps_and_pad_with_zeros(self) -> None:
        table = Table("sequences", sequence_layout(3), 10, sampler=Fifo(), max_times_sampled=1)
        with self.opened(table, history=3) as (replay, writer):
            for i in range(1, 5):
                writer.append(make_step(i))
                if i == 3:
                    writer.create_item("sequences", 1.0, 0, 3)
            writer.create_item("sequences", 1.0, 2, 4, padding=1)
            writer.create_item("sequences", 1.0, 3, 4, padding=2)
            writer.end_episode()
            writer.flush()
            sampler = replay.sampler("sequences", 3)
            data = next(sampler).data
            sampler.close()
            np.testing.assert_array_equal(data["action"], [[1, 2, 3], [3, 4, 0], [4, 0, 0]])
            np.testing.assert_array_equal(data["observation"][1], [[3, -3], [4, -4], [0, 0]])
            assert data["observation"].shape == (3, 3, 2)

    def test_one_writer_feeds_several_tables(self) -> None:
        pairs = pair_table(sampler=Fifo(), max_times_sampled=1)
        sequences = Table("sequences", sequence_layout(2), 10, sampler=Fifo(), max_times_sampled=1)
        with self.opened(pairs, sequences, history=2) as (replay, writer):
            for i in range(4):
                writer.append(make_step(i))
                writer.create_item("pairs", 1.0, i, i + 1, inline=np.float32(i))
                if i:
                    writer.create_item("sequences", 1.0, i - 1, i + 1)
            writer.flush()
            assert numbers(draw(replay, "pairs", 4)) == [0, 1, 2, 3]
            sampler = replay.sampler("sequences", 3)
            np.testing.assert_array_equal(next(sampler).data["action"], [[0, 1], [1, 2], [2, 3]])
            sampler.close()

    def test_episodes_begin_at_zero_and_items_outlive_them(self) -> None:
        with self.opened(pair_table(sampler=Fifo(), max_times_sampled=1), history=2) as (replay, writer):
            for episode in range(3):
                for i in range(2):
                    assert writer.append(make_step(10 * episode + i)) == i
                writer.create_item("pairs", 1.0, 0, 2, inline=np.float32(0))
                writer.end_episode()
                with pytest.raises(errors.SpecError):
                    writer.create_item("pairs", 1.0, 0, 2, inline=np.float32(0))
            writer.flush()
            assert numbers(draw(replay, "pairs", 3)) == [0, 10, 20]

    def test_leaves_of_every_kind(self) -> None:
        step = {
            "image": specs.Array((4, 3, 1), np.uint8),
            "list": [specs.Array((), np.float64), (specs.Array((2,), np.bool_),)],
            "long": specs.Array((), np.int64),
        }
        data: dict[str, Any] = {"nested": (FromStep(0, Select.FIRST), [FromStep(3, Select.ALL)])} | {
            str(i): FromStep(i, Select.ALL) for i in range(4)
        }
        inline = {"a": specs.Array((3,), np.float32), "b": specs.Array((), np.bool_)}
        data |= {"a": FromInline(0), "b": FromInline(1)}
        table = Table("kinds", Layout(step, data, 2, inline), 10, sampler=Fifo())
        image = np.arange(12, dtype=np.uint8).reshape(4, 3, 1)
        with self.opened(table, history=2) as (replay, writer):
            for i in range(2):
                writer.append(
                    {
                        "image": image + np.uint8(i),
                        "list": [np.float64(0.1 + i), (np.array([True, False]),)],
                        "long": np.int64(2**40 + i),
                    }
                )
            writer.create_item("kinds", 1.0, 0, 2, {"a": np.ones(3, np.float32), "b": np.bool_(True)})
            writer.flush()
            sampler = replay.sampler("kinds", 1)
            got = next(sampler).data
            sampler.close()
            tree.assert_same_structure(got, table.signature)
            np.testing.assert_array_equal(got["0"][0], np.stack([image, image + 1]))
            np.testing.assert_array_equal(got["nested"][0][0], image)
            np.testing.assert_array_equal(got["1"][0], [0.1, 1.1])
            np.testing.assert_array_equal(got["2"][0], [[True, False]] * 2)
            np.testing.assert_array_equal(got["3"][0], [2**40, 2**40 + 1])
            assert got["a"].dtype == np.float32 and got["b"].tolist() == [True]

    def test_replay_keeps_copies(self) -> None:
        """Neither the caller's arrays nor the sampled batch alias what replay holds."""
        with self.opened(pair_table()) as (replay, writer):
            step = make_step(7)
            writer.append(step)
            writer.create_item("pairs", 1.0, 0, 1, inline=np.float32(7))
            step["observation"][:] = 99
            writer.flush()
            sampler = replay.sampler("pairs", 1)
            for _ in range(3):
                batch = next(sampler).data
                np.testing.assert_array_equal(batch.first, [[7, -7]])
                batch.first[:] = 55
            sampler.close()

    # --- selectors -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "sampler, expected",
        [
            (Fifo(), [0, 1, 2, 3, 4]),
            (Lifo(), [4, 3, 2, 1, 0]),
            (MinHeap(), [3, 0, 2, 4, 1]),
            (MaxHeap(), [1, 0, 2, 4, 3]),
        ],
    )
    def test_order_of_samplers(self, sampler: Selector, expected: list[int]) -> None:
        """Deterministic samplers with their ties: of equal priorities the older item is drawn."""
        with self.opened(pair_table(sampler=sampler, max_times_sampled=1)) as (replay, writer):
            write_pairs(writer, "pairs", range(5), [5, 9, 5, 1, 5])
            drawn = draw(replay, "pairs", 5, batch_size=5)
            assert numbers(drawn) == expected
            assert [info.probability for _, info in drawn] == [1.0] * 5
            assert wait_until(lambda: replay.info("pairs").size == 0)

    @pytest.mark.parametrize(
        "remover, expected",
        [
            (Fifo(), {3, 4, 5}),
            (Lifo(), {0, 1, 2}),
            (MinHeap(), {0, 3, 5}),
            (MaxHeap(), {1, 2, 4}),
        ],
    )
    def test_removers(self, remover: Selector, expected: set[int]) -> None:
        """One item more than max_size makes the remover's choice go, the new item included."""
        with self.opened(pair_table(max_size=3, remover=remover)) as (replay, writer):
            write_pairs(writer, "pairs", range(6), [5, 1, 3, 9, 0, 4])
            assert set(numbers(draw(replay, "pairs", 150, batch_size=3))) == expected
            assert replay.info("pairs")[1:4] == (3, 3, 6)

    @pytest.mark.parametrize("remover", [Uniform(), Prioritized(1.0)])
    def test_random_removers_keep_the_table_full(self, remover: Selector) -> None:
        with self.opened(pair_table(max_size=5, remover=remover)) as (replay, writer):
            write_pairs(writer, "pairs", range(50), [1.0 + (i % 3) for i in range(50)])
            drawn = draw(replay, "pairs", 200, batch_size=5)
            assert len(set(numbers(drawn))) == 5
            assert replay.info("pairs")[1:4] == (5, 5, 50)

    def test_uniform_is_uniform(self) -> None:
        with self.opened(pair_table(max_size=10)) as (replay, writer):
            write_pairs(writer, "pairs", range(25), [float(i) for i in range(25)])
            drawn = draw(replay, "pairs", 4000, batch_size=10)
            counts = np.bincount(numbers(drawn), minlength=25)
            assert counts[:15].sum() == 0
            assert chi_square(counts[15:], np.full(10, 0.1)) < CHI_SQUARE_LIMIT_9
            assert {float(info.probability) for _, info in drawn} == {0.1}
            assert {int(info.table_size) for _, info in drawn} == {10}
            assert all(info.priority == number for number, info in drawn)

    @pytest.mark.parametrize("exponent", [0.5, 1.0])
    def test_prioritized_follows_priorities(self, exponent: float) -> None:
        priorities = np.array([1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 10], np.float64)
        with self.opened(pair_table(sampler=Prioritized(exponent))) as (replay, writer):
            write_pairs(writer, "pairs", range(11), priorities)
            drawn = draw(replay, "pairs", 4000, batch_size=10)
            weights = np.where(priorities > 0, priorities**exponent, 0)
            expected = weights / weights.sum()
            counts = np.bincount(numbers(drawn), minlength=11)
            assert counts[4] == 0, "priority 0 is never drawn while another is positive"
            present = expected > 0
            assert chi_square(counts[present], expected[present]) < CHI_SQUARE_LIMIT_9
            for number, info in drawn[:200]:
                assert info.probability == pytest.approx(expected[number], rel=1e-6)
                assert info.priority == pytest.approx(priorities[number])

    def test_prioritized_is_uniform_where_all_priorities_are_zero(self) -> None:
        with self.opened(pair_table(sampler=Prioritized(0.7))) as (replay, writer):
            write_pairs(writer, "pairs", range(10), [0.0] * 10)
            drawn = draw(replay, "pairs", 3000, batch_size=10)
            counts = np.bincount(numbers(drawn), minlength=10)
            assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_LIMIT_9
            assert drawn[0][1].probability == pytest.approx(0.1)

    def test_update_priorities(self) -> None:
        with self.opened(pair_table(max_size=4, sampler=Prioritized(1.0))) as (replay, writer):
            write_pairs(writer, "pairs", range(4))
            keys = {number: info.key for number, info in draw(replay, "pairs", 100)}
            assert sorted(keys) == [0, 1, 2, 3]
            order = np.array([keys[i] for i in (0, 1, 2, 3)], np.uint64)
            replay.update_priorities("pairs", order, np.array([0.0, 0.0, 3.0, 1.0]))
            drawn = draw(replay, "pairs", 200)
            assert set(numbers(drawn)) == {2, 3}
            assert {float(info.probability) for _, info in drawn} == {0.75, 0.25}
            assert {int(info.key) for n, info in drawn if n == 2} == {int(keys[2])}
            # 0 and 1 leave the table; their keys are passed over, the others' are not.
            write_pairs(writer, "pairs", [4, 5], [0.0, 0.0])
            replay.update_priorities("pairs", order[[0, 2, 1, 3]], np.array([9.0, 0.0, 9.0, 2.0]))
            replay.update_priorities("pairs", np.zeros(0, np.uint64), np.zeros(0))
            drawn = draw(replay, "pairs", 50)
            assert set(numbers(drawn)) == {3} and drawn[0][1].priority == 2.0

    @pytest.mark.parametrize("sampler, expected", [(MinHeap(), [2, 1, 0]), (MaxHeap(), [0, 1, 2])])
    def test_heaps_follow_updates(self, sampler: Selector, expected: list[int]) -> None:
        finder = pair_table("pairs", sampler=sampler)
        with self.opened(finder) as (replay, writer):
            order = [0, 1, 2]
            top = 1 if isinstance(sampler, MaxHeap) else 3
            write_pairs(writer, "pairs", order, [2.0, 2.0, 2.0])
            found = []
            for _ in order:  # each item found on top is sent below the others
                number, info = draw(replay, "pairs", 1)[0]
                found.append(number)
                replay.update_priorities("pairs", np.array([info.key]), np.array([float(top)]))
            assert found == [0, 1, 2]
            number, info = draw(replay, "pairs", 1)[0]
            assert number == 0 and info.priority == top, "of equals, the least recently updated"

    def test_max_times_sampled(self) -> None:
        with self.opened(pair_table(sampler=Fifo(), max_times_sampled=2)) as (replay, writer):
            write_pairs(writer, "pairs", range(3))
            drawn = draw(replay, "pairs", 6, batch_size=3)
            assert numbers(drawn) == [0, 0, 1, 1, 2, 2]
            assert [int(info.times_sampled) for _, info in drawn] == [1, 2, 1, 2, 1, 2]
            assert [int(info.table_size) for _, info in drawn] == [3, 3, 2, 2, 1, 1]
            assert wait_until(lambda: replay.info("pairs").size == 0)
            write_pairs(writer, "pairs", [8, 9])
            assert numbers(draw(replay, "pairs", 4)) == [8, 8, 9, 9]

    @pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0)])
    def test_max_times_sampled_with_a_random_sampler(self, sampler: Selector) -> None:
        """Each item is drawn exactly as often as it may be, also within one batch."""
        with self.opened(pair_table(sampler=sampler, max_times_sampled=3)) as (replay, writer):
            write_pairs(writer, "pairs", range(8), [1.0 + i for i in range(8)])
            drawn = draw(replay, "pairs", 24, batch_size=8)
            assert np.bincount(numbers(drawn)).tolist() == [3] * 8
            assert wait_until(lambda: replay.info("pairs").size == 0)

    def test_times_sampled_counts(self) -> None:
        with self.opened(pair_table()) as (replay, writer):
            write_pairs(writer, "pairs", [1])
            assert [int(info.times_sampled) for _, info in draw(replay, "pairs", 4)] == [1, 2, 3, 4]

    # --- rate limits -----------------------------------------------------------------------------

    def test_samples_wait_for_the_minimum_size(self) -> None:
        with self.opened(pair_table(rate_limiter=MinSize(3))) as (replay, writer):
            write_pairs(writer, "pairs", [0, 1])
            assert replay.can_insert("pairs", 1000)
            sampler = replay.sampler("pairs", 2, timeout=SHORT)
            assert not sampler.ready()
            started = time.monotonic()
            with pytest.raises(errors.ReplayTimeoutError, match="pairs"):
                next(sampler)
            assert SHORT * 0.9 < time.monotonic() - started < SHORT + 10
            sampler.close()
            write_pairs(writer, "pairs", [2])
            sampler = replay.sampler("pairs", 2, timeout=LONG)
            assert wait_until(sampler.ready)
            assert next(sampler).data.action.shape == (2,)
            sampler.close()

    def test_a_sampler_that_timed_out_goes_on(self) -> None:
        with self.opened(pair_table(rate_limiter=MinSize(1))) as (replay, writer):
            sampler = replay.sampler("pairs", 1, timeout=SHORT)
            with pytest.raises(errors.ReplayTimeoutError):
                next(sampler)
            write_pairs(writer, "pairs", [5])
            assert wait_until(sampler.ready)
            assert next(sampler).data.action.tolist() == [5]
            sampler.close()

    def test_sampler_wakes_when_items_come(self) -> None:
        with self.opened(pair_table(rate_limiter=MinSize(4))) as (replay, writer):
            sampler = replay.sampler("pairs", 2, timeout=LONG)
            got: list[Any] = []
            thread = threading.Thread(target=lambda: got.append(next(sampler)), daemon=True)
            thread.start()
            write_pairs(writer, "pairs", range(4))
            thread.join(LONG)
            assert not thread.is_alive() and got[0].data.action.shape == (2,)
            sampler.close()

    def test_a_full_queue_makes_inserts_wait(self) -> None:
        queue = pair_table(max_size=4, sampler=Fifo(), rate_limiter=Queue(4), max_times_sampled=1)
        with self.opened(queue) as (replay, writer):
            write_pairs(writer, "pairs", [0, 1, 2])
            assert replay.can_insert("pairs") and not replay.can_insert("pairs", 2)
            write_pairs(writer, "pairs", [3])
            assert not replay.can_insert("pairs")
            hasty = replay.writer(1, timeout=SHORT)
            hasty.append(make_step(4))
            with pytest.raises(errors.ReplayTimeoutError, match="pairs"):
                hasty.create_item("pairs", 1.0, 0, 1, inline=np.float32(4))
                hasty.flush()
            sampler = replay.sampler("pairs", 4, timeout=LONG)
            assert next(sampler).data.action.tolist() == [0, 1, 2, 3]
            sampler.close()
            assert wait_until(lambda: replay.can_insert("pairs"))
            with contextlib.suppress(errors.ReplayTimeoutError):
                hasty.close()

    def test_queue_passes_everything_in_order_between_threads(self) -> None:
        queue = pair_table(max_size=8, sampler=Fifo(), rate_limiter=Queue(8), max_times_sampled=1)
        with self.opened(queue) as (replay, writer):
            thread = threading.Thread(target=lambda: write_pairs(writer, "pairs", range(40)), daemon=True)
            thread.start()
            assert numbers(draw(replay, "pairs", 40, batch_size=4)) == list(range(40))
            thread.join(LONG)
            assert not thread.is_alive()

    def test_stack(self) -> None:
        stack = pair_table(
            max_size=4, sampler=Lifo(), remover=Lifo(), rate_limiter=Stack(4), max_times_sampled=1
        )
        with self.opened(stack) as (replay, writer):
            write_pairs(writer, "pairs", range(4))
            assert numbers(draw(replay, "pairs", 4, batch_size=4)) == [3, 2, 1, 0]

    def test_samples_per_insert_holds_both_sides(self) -> None:
        ratio = SampleToInsertRatio(2.0, 4, 8.0)  # samples owed stay within [0, 16]
        with self.opened(pair_table(rate_limiter=ratio)) as (replay, writer):
            write_pairs(writer, "pairs", range(8))
            assert not replay.can_insert("pairs"), "16 samples are owed"
            sampler = replay.sampler("pairs", 4, timeout=SHORT)
            for _ in range(4):
                next(sampler)
            assert not sampler.ready()
            with pytest.raises(errors.ReplayTimeoutError):
                next(sampler)
            assert replay.info("pairs").num_sampled == 16
            assert replay.info("pairs").samples_per_insert == 2.0
            assert replay.can_insert("pairs")
            sampler.close()

    # --- counters, reset, life cycle -------------------------------------------------------------

    def test_info_and_reset(self) -> None:
        with self.opened(pair_table(max_size=4, sampler=Prioritized(1.0))) as (replay, writer):
            info = replay.info("pairs")
            assert info == ("pairs", 0, 4, 0, 0) and info.samples_per_insert == 0.0
            write_pairs(writer, "pairs", range(6))
            draw(replay, "pairs", 6, batch_size=2)
            info = replay.info("pairs")
            assert info[:4] == ("pairs", 4, 4, 6)
            assert info.num_sampled >= 6 if self.prefetches else info.num_sampled == 6
            keys = np.array([i.key for _, i in draw(replay, "pairs", 20)], np.uint64)
            replay.reset("pairs")
            assert replay.info("pairs")[:4] == ("pairs", 0, 4, 0)
            if not self.prefetches:
                assert replay.info("pairs").num_sampled == 0
            write_pairs(writer, "pairs", [7, 8])
            replay.update_priorities("pairs", keys, np.zeros(len(keys)))
            drawn = draw(replay, "pairs", 40)
            assert set(numbers(drawn)) == {7, 8}, "keys of before the reset name nothing"

    def test_tables_are_known_by_name(self) -> None:
        tables = [pair_table(), Table("sequences", sequence_layout(3), 7)]
        with self.make_replay(tables) as replay:
            assert list(replay.tables) == ["pairs", "sequences"]
            assert replay.table("sequences").max_size == 7
            assert replay.resumable == self.resumable
        with pytest.raises(errors.ConfigError, match="different names"):
            self.make_replay([pair_table(), pair_table()])
        with pytest.raises(errors.ConfigError, match="at least one table"):
            self.make_replay([])

    def test_closing(self) -> None:
        replay = self.make_replay([pair_table()])
        writer = replay.writer(1)
        write_pairs(writer, "pairs", [1])
        sampler = replay.sampler("pairs", 1)
        next(sampler)
        sampler.close()
        sampler.close()
        with pytest.raises(errors.ReplayClosedError):
            next(sampler)
        writer.close()
        writer.close()
        with pytest.raises(errors.ReplayClosedError):
            writer.append(make_step(0))
        replay.close()
        replay.close()
        for call in (
            lambda: replay.writer(1),
            lambda: replay.sampler("pairs", 1),
            lambda: replay.info("pairs"),
            lambda: replay.can_insert("pairs"),
            lambda: replay.reset("pairs"),
            lambda: replay.update_priorities("pairs", np.zeros(1, np.uint64), np.ones(1)),
        ):
            with pytest.raises(errors.ReplayClosedError):
                call()

    def test_close_wakes_who_waits(self) -> None:
        replay = self.make_replay([pair_table()])
        sampler = replay.sampler("pairs", 1, timeout=LONG)
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                next(sampler)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(SHORT)
        replay.close()
        thread.join(LONG / 2)
        assert not thread.is_alive()
        assert [type(error) for error in raised] == [errors.ReplayClosedError]

    @pytest.mark.parametrize("how", ["garbage", "closed"])
    def test_items_outlive_a_writer_that_dies_in_mid_episode(self, how: str) -> None:
        with self.opened(pair_table(sampler=Fifo(), max_times_sampled=1)) as (replay, survivor):
            dying = replay.writer(4)
            for i in range(6):
                dying.append(make_step(i))
                if 1 <= i < 5:
                    dying.create_item("pairs", 1.0, i - 1, i + 1, inline=np.float32(i))
            dying.flush()
            if how == "closed":
                dying.close()
            del dying
            write_pairs(survivor, "pairs", [50, 51, 52, 53])
            sampler = replay.sampler("pairs", 8)
            data = next(sampler).data
            sampler.close()
            assert data.action.tolist() == [0, 1, 2, 3, 50, 51, 52, 53]
            np.testing.assert_array_equal(data.last[:, 0], [1, 2, 3, 4, 50, 51, 52, 53])

    def test_threads_write_and_read_at_once(self) -> None:
        """Every sampled item is whole: its leaves agree on the number of its steps."""
        with self.opened(pair_table(max_size=64)) as (replay, main_writer):
            write_pairs(main_writer, "pairs", [0])

            def write(base: int) -> None:
                writer = replay.writer(3)
                for i in range(150):
                    index = writer.append(make_step(base + i))
                    first = max(0, index - 2)
                    number = base + i - (index - first)
                    writer.create_item("pairs", 1.0, first, index + 1, inline=np.float32(number))
                writer.close()

            threads = [threading.Thread(target=write, args=(1000 * k,), daemon=True) for k in (1, 2)]
            for thread in threads:
                thread.start()
            sampler = replay.sampler("pairs", 16)
            for _ in range(50):
                data = next(sampler).data
                np.testing.assert_array_equal(data.first[:, 0], data.action)
                np.testing.assert_array_equal(data.first[:, 1], -data.action)
                np.testing.assert_array_equal(data.value, data.action)
                span = data.last[:, 0] - data.action
                assert ((span >= 0) & (span <= 2)).all()
            for thread in threads:
                thread.join(LONG)
            assert wait_until(lambda: replay.info("pairs").num_inserted == 301)
            sampler.close()

    # --- bad input -------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", [name for name, *_ in BAD_CALLS])
    def test_bad_input_is_refused_and_changes_nothing(self, name: str) -> None:
        _, error_class, words, call = next(case for case in BAD_CALLS if case[0] == name)
        with self.opened(*bad_call_tables(), history=3) as (replay, writer):
            for i in range(5):
                writer.append(make_step(i))
            with pytest.raises(error_class) as caught:
                call(replay, writer)
            message = str(caught.value)
            assert words in message and len(message) > 25, message
            assert replay.info("pairs")[1:] == (0, 100, 0, 0)
            # The writer goes on where it was.
            assert writer.append(make_step(5)) == 5
            writer.create_item("pairs", 1.0, 3, 6, inline=np.float32(0))
            writer.flush()
            assert numbers(draw(replay, "pairs", 1)) == [3]
            assert replay.info("pairs")[1:4] == (1, 100, 1)

    # --- saving ----------------------------------------------------------------------------------

    def test_save_and_restore(self, tmp_path: pathlib.Path) -> None:
        tables = [
            pair_table(max_size=4, sampler=Prioritized(1.0)),
            Table("sequences", sequence_layout(2), 6, sampler=Fifo(), max_times_sampled=2),
        ]
        with self.opened(*tables, history=2) as (replay, writer):
            for i in range(6):
                writer.append(make_step(i))
                writer.create_item("pairs", 1.0 + i, i, i + 1, inline=np.float32(i))
                if i % 2:
                    writer.create_item("sequences", 1.0, i - 1, i + 1)
            writer.flush()
            keys = {number: info.key for number, info in draw(replay, "pairs", 60)}
            replay.update_priorities("pairs", np.array([keys[3]]), np.array([0.0]))
            writer.end_episode()
            saved = replay.info("pairs"), replay.info("sequences")
            replay.save(tmp_path)
        with self.make_replay(tables, default_timeout=LONG) as replay:
            replay.restore(tmp_path)
            restored = replay.info("pairs"), replay.info("sequences")
            assert [x[:4] for x in restored] == [x[:4] for x in saved]
            assert restored[0].num_sampled >= 60 and restored == saved
            drawn = draw(replay, "pairs", 200)
            assert set(numbers(drawn)) == {2, 4, 5}, "priority 0 came back"
            assert {n: info.key for n, info in drawn} == {n: keys[n] for n in (2, 4, 5)}
            assert {(n, info.priority) for n, info in drawn} == {(2, 3.0), (4, 5.0), (5, 6.0)}
            sampler = replay.sampler("sequences", 6)
            actions = [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
            np.testing.assert_array_equal(next(sampler).data["action"], actions)
            sampler.close()
            writer = replay.writer(1)
            write_pairs(writer, "pairs", [9], [1000.0])
            assert 9 in numbers(draw(replay, "pairs", 20))
            writer.close()

    def test_restored_rate_limits_go_on(self, tmp_path: pathlib.Path) -> None:
        queue = pair_table(max_size=4, sampler=Fifo(), rate_limiter=Queue(4), max_times_sampled=1)
        with self.opened(queue) as (replay, writer):
            write_pairs(writer, "pairs", range(4))
            replay.save(tmp_path)
        with self.make_replay([queue], default_timeout=LONG) as replay:
            replay.restore(tmp_path)
            assert not replay.can_insert("pairs")
            assert numbers(draw(replay, "pairs", 4, batch_size=2)) == [0, 1, 2, 3]
            assert wait_until(lambda: replay.can_insert("pairs", 4))

    @pytest.mark.parametrize(
        "change, field",
        [
            ({"max_size": 11}, "max_size"),
            ({"sampler": Prioritized(0.9)}, "sampler"),
            ({"remover": Lifo()}, "remover"),
            ({"rate_limiter": MinSize(2)}, "rate_limiter"),
            ({"max_times_sampled": 3}, "max_times_sampled"),
        ],
    )
    def test_other_tables_contents_are_refused(
        self, change: dict[str, Any], field: str, tmp_path: pathlib.Path
    ) -> None:
        with self.opened(pair_table(max_size=10)) as (replay, writer):
            write_pairs(writer, "pairs", [1])
            replay.save(tmp_path)
        with (
            self.make_replay([pair_table(**({"max_size": 10} | change))]) as replay,
            pytest.raises(errors.CheckpointError, match=f"(?s)pairs.*{field}"),
        ):
            replay.restore(tmp_path)

    def test_other_signatures_and_names_are_refused(self, tmp_path: pathlib.Path) -> None:
        with self.opened(pair_table(max_size=10)) as (replay, writer):
            write_pairs(writer, "pairs", [1])
            replay.save(tmp_path)
        for table, words in (
            (pair_table("others", max_size=10), "others"),
            (Table("pairs", sequence_layout(2), 10), "signature"),
        ):
            with (
                self.make_replay([table]) as replay,
                pytest.raises(errors.CheckpointError, match=f"(?s)pairs.*{words}|{words}.*pairs"),
            ):
                replay.restore(tmp_path)

    def test_unreadable_contents_are_refused(self, tmp_path: pathlib.Path) -> None:
        """Nothing there, or any one file of the checkpoint cut in half or missing."""
        table = pair_table(max_size=10)
        with self.opened(table) as (replay, writer):
            write_pairs(writer, "pairs", range(5))
            (tmp_path / "good").mkdir()
            replay.save(tmp_path / "good")
        (tmp_path / "empty").mkdir()
        bad = [tmp_path / "empty", tmp_path / "absent"]
        for i, path in enumerate(sorted(p for p in (tmp_path / "good").rglob("*") if p.is_file())):
            if path.stat().st_size == 0:
                continue  # a marker file has no contents to lose
            for how in ("cut", "gone"):
                directory = tmp_path / f"{how}{i}"
                for source in (tmp_path / "good").rglob("*"):
                    copy = directory / source.relative_to(tmp_path / "good")
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    if source.is_file() and source != path:
                        copy.write_bytes(source.read_bytes())
                    elif source == path and how == "cut":
                        copy.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
                bad.append(directory)
        assert len(bad) >= 4
        for directory in bad:
            with self.make_replay([table]) as replay, pytest.raises(errors.CheckpointError):
                replay.restore(directory)
        with self.make_replay([table]) as replay:
            replay.restore(tmp_path / "good")
            assert replay.info("pairs").size == 5

    def test_writers_resume_only_where_replay_does(self, tmp_path: pathlib.Path) -> None:
        with self.opened(pair_table(), history=3) as (replay, writer):
            for i in range(4):
                writer.append(make_step(i))
            if not self.resumable:
                with pytest.raises(errors.CheckpointError):
                    writer.save()
                return
            state = writer.save()
            replay.save(tmp_path)
        with self.make_replay([pair_table()]) as replay:
            replay.restore(tmp_path)
            writer = replay.writer(3)
            writer.restore(state)
            assert writer.append(make_step(4)) == 4
            writer.create_item("pairs", 1.0, 2, 5, inline=np.float32(0))
            with pytest.raises(errors.SpecError, match="history"):
                writer.create_item("pairs", 1.0, 1, 5, inline=np.float32(0))
            writer.flush()
            sampler = replay.sampler("pairs", 1)
            data = next(sampler).data
            assert (data.action.tolist(), data.last[0, 0]) == ([2], 4)
            sampler.close()
            writer.close()


__all__ = [
    "BAD_CALLS",
    "Pair",
    "ReplayContract",
    "bad_call_tables",
    "chi_square",
    "draw",
    "make_step",
    "numbers",
    "pair_layout",
    "pair_table",
    "sequence_layout",
    "wait_until",
    "write_pairs",
]
