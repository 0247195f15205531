"""Replay contract: what is written is what is read, through every selector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tree

from agentkit import errors, specs
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
from agentkit.testing.replay_cases import (
    CHI_SQUARE_LIMIT_9,
    Pair,
    ReplayCases,
    chi_square,
    draw,
    make_step,
    numbers,
    pair_table,
    sequence_layout,
    wait_until,
    write_pairs,
)


class ContentsContract(ReplayCases):
    """Checks items, selectors and priorities."""

    def test_pairs_take_first_last_and_inline(self) -> None:
        """Checks that each leaf comes from the step its layout names, with the signature's dtype and shape."""
        with self.opened(pair_table(sampler=Fifo(), max_times_sampled=1), history=3) as (replay, writer):
            for i in range(5):
                assert writer.append(make_step(i)) == i
                if i >= 2:
                    writer.create_item("pairs", 1.0, i - 2, i + 1, inline=np.float32(10 * i))
            writer.flush()
            sampler = replay.sampler("pairs", 3)
            keys, sample = next(sampler)
            sampler.close()
            assert type(sample.data) is Pair
            np.testing.assert_array_equal(sample.data.first, [[0, 0], [1, -1], [2, -2]])
            np.testing.assert_array_equal(sample.data.last, [[2, -2], [3, -3], [4, -4]])
            np.testing.assert_array_equal(sample.data.action, [0, 1, 2])
            np.testing.assert_array_equal(sample.data.value, [20, 30, 40])
            for leaf, spec in zip(sample.data, replay.table("pairs").signature, strict=True):
                assert leaf.dtype == spec.dtype and leaf.shape == (3, *spec.shape)
            dtypes = [np.asarray(x).dtype.name for x in (keys, *sample.info)]
            assert dtypes == ["uint64", "float64", "int64", "float64", "int32"]
            assert all(x.shape == (3,) for x in (keys, *sample.info))
            assert len(set(keys.tolist())) == 3

    def test_sequences_take_all_steps_and_pad_with_zeros(self) -> None:
        """Checks that ALL takes every step in order, and pads short episodes with zeros."""
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
            data = next(sampler).sample.data
            sampler.close()
            np.testing.assert_array_equal(data["action"], [[1, 2, 3], [3, 4, 0], [4, 0, 0]])
            np.testing.assert_array_equal(data["observation"][1], [[3, -3], [4, -4], [0, 0]])
            assert data["observation"].shape == (3, 3, 2)

    def test_there_are_many_items_of_many_steps_and_of_wide_values(self) -> None:
        """Checks that an item may name more steps, and carry more, than a kilobyte."""
        inline = specs.Array((600,), np.float32)
        wide = Table("wide", Layout(specs.Array((), np.int32), FromInline(0), inline=inline), 1_000, sampler=Lifo())
        long = Table("long", Layout(specs.Array((), np.int32), FromStep(0, Select.ALL), 600), 1_000, sampler=Lifo())
        with self.opened(wide, long, history=600) as (replay, writer):
            for i in range(1_100):
                writer.append(np.int32(i))
                if i >= 599:
                    writer.create_item("wide", 1.0, i, i + 1, inline=np.full(600, i, np.float32))
                    writer.create_item("long", 1.0, i - 599, i + 1)
            writer.flush()
            for name, first in (("wide", 1_099), ("long", 500)):
                sampler = replay.sampler(name, 1)
                data = next(sampler).sample.data
                sampler.close()
                assert replay.info(name).size == 501 and data.shape == (1, 600)
                assert (data[0, 0], data[0, -1]) == (first, 1_099)

    def test_one_writer_feeds_several_tables(self) -> None:
        """Checks that items of two tables refer to the same steps."""
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
            np.testing.assert_array_equal(next(sampler).sample.data["action"], [[0, 1], [1, 2], [2, 3]])
            sampler.close()

    def test_episodes_begin_at_zero_and_items_outlive_them(self) -> None:
        """Checks that indices start anew, old ranges are refused, and old items stay."""
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
        """Checks that images, scalars, booleans and nests of containers come back as they went in."""
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
            got = next(sampler).sample.data
            sampler.close()
            tree.assert_same_structure(got, table.signature)
            np.testing.assert_array_equal(got["0"][0], np.stack([image, image + 1]))
            np.testing.assert_array_equal(got["nested"][0][0], image)
            np.testing.assert_array_equal(got["1"][0], [0.1, 1.1])
            np.testing.assert_array_equal(got["2"][0], [[True, False]] * 2)
            np.testing.assert_array_equal(got["3"][0], [2**40, 2**40 + 1])
            assert got["a"].dtype == np.float32 and got["b"].tolist() == [True]

    def test_replay_keeps_copies(self) -> None:
        """Checks that neither the caller's arrays nor the sampled batch alias the arrays in replay."""
        with self.opened(pair_table()) as (replay, writer):
            step = make_step(7)
            writer.append(step)
            writer.create_item("pairs", 1.0, 0, 1, inline=np.float32(7))
            step["observation"][:] = 99
            writer.flush()
            sampler = replay.sampler("pairs", 1)
            for _ in range(3):
                batch = next(sampler).sample.data
                np.testing.assert_array_equal(batch.first, [[7, -7]])
                batch.first[:] = 55
            sampler.close()

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
        """Checks deterministic samplers and their ties: of equal priorities the older item is drawn."""
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
        """Checks that one item more than max_size makes the remover's choice go, the new item included."""
        with self.opened(pair_table(max_size=3, remover=remover)) as (replay, writer):
            write_pairs(writer, "pairs", range(6), [5, 1, 3, 9, 0, 4])
            assert set(numbers(draw(replay, "pairs", 150, batch_size=3))) == expected
            assert replay.info("pairs")[1:4] == (3, 3, 6)

    @pytest.mark.parametrize("remover", [Uniform(), Prioritized(1.0)])
    def test_random_removers_keep_the_table_full(self, remover: Selector) -> None:
        """Checks that a random remover removes one item per insert, no more."""
        with self.opened(pair_table(max_size=5, remover=remover)) as (replay, writer):
            write_pairs(writer, "pairs", range(50), [1.0 + (i % 3) for i in range(50)])
            drawn = draw(replay, "pairs", 200, batch_size=5)
            assert len(set(numbers(drawn))) == 5
            assert replay.info("pairs")[1:4] == (5, 5, 50)

    def test_uniform_is_uniform(self) -> None:
        """Checks uniformity by chi-square, over the last max_size items only, whatever their priorities."""
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
        """Checks draws by chi-square against p**exponent, and that the reported chances are exact."""
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

    def test_new_items_get_the_largest_priority_seen(self) -> None:
        """Checks that an item without a priority begins with the largest given so far, 1 at least, until a reset."""

        def write(number: int, priority: float | None = None) -> None:
            index = writer.append(make_step(number))
            writer.create_item("pairs", priority, index, index + 1, inline=np.float32(number))
            writer.flush()

        with self.opened(pair_table(sampler=Prioritized(1.0))) as (replay, writer):
            write(0)
            drawn = dict(draw(replay, "pairs", 1))
            assert drawn[0].priority == 1.0
            for priority in (8.0, 0.25):
                replay.update_priorities("pairs", np.array([drawn[0].key]), np.array([priority]))
            write(1)
            found = dict(draw(replay, "pairs", 200))
            assert {number: info.priority for number, info in found.items()} == {0: 0.25, 1: 8.0}
            replay.reset("pairs")
            write(2)
            assert [info.priority for _, info in draw(replay, "pairs", 1)] == [1.0]
            write(3, 4.0)
            write(4)
            found = dict(draw(replay, "pairs", 200))
            assert {number: info.priority for number, info in found.items()} == {2: 1.0, 3: 4.0, 4: 4.0}

    def test_prioritized_is_uniform_where_all_priorities_are_zero(self) -> None:
        """Checks that both backends draw uniformly where all priorities are zero, as Reverb does."""
        with self.opened(pair_table(sampler=Prioritized(0.7))) as (replay, writer):
            write_pairs(writer, "pairs", range(10), [0.0] * 10)
            drawn = draw(replay, "pairs", 3000, batch_size=10)
            counts = np.bincount(numbers(drawn), minlength=10)
            assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_LIMIT_9
            assert drawn[0][1].probability == pytest.approx(0.1)

    def test_update_priorities(self) -> None:
        """Checks that updates change later draws, and that keys that are gone are passed over."""
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
        """Checks that an update moves an item, and counts as its latest insert among equals."""
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
        """Checks that an item goes after its last draw, and that the counts say so draw by draw."""
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
        """Checks that each item is drawn exactly as often as it may be, also within one batch."""
        with self.opened(pair_table(sampler=sampler, max_times_sampled=3)) as (replay, writer):
            write_pairs(writer, "pairs", range(8), [1.0 + i for i in range(8)])
            drawn = draw(replay, "pairs", 24, batch_size=8)
            assert np.bincount(numbers(drawn)).tolist() == [3] * 8
            assert wait_until(lambda: replay.info("pairs").size == 0)

    def test_times_sampled_counts(self) -> None:
        """Checks that an item's first draw reports 1."""
        with self.opened(pair_table()) as (replay, writer):
            write_pairs(writer, "pairs", [1])
            assert [int(info.times_sampled) for _, info in draw(replay, "pairs", 4)] == [1, 2, 3, 4]
