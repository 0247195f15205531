import numpy as np
import pytest

from agentkit import specs
from agentkit.errors import CheckpointError
from agentkit.replay import Fifo, InProcessReplay, MaxHeap, MinHeap, Prioritized, Queue, Table, Uniform, row_layout
from agentkit.testing.replay import ReplayContract, make_step, pair_table
from tests.replay.writing_in_turns import draw_too_early_in_turns, write_much_in_turns


class TestInProcessReplay(ReplayContract):
    resumable = True

    def make_replay(self, tables, **kwargs):
        return InProcessReplay(tables, **kwargs)


def test_what_one_thread_writes_does_not_wait_for_what_only_it_could_draw():
    write_much_in_turns(InProcessReplay)


def test_who_would_wait_for_itself_is_told_at_once():
    draw_too_early_in_turns(InProcessReplay)


def test_who_goes_on_after_a_save_stores_steps_where_who_restores_does(tmp_path):
    """Else two runs whose contents are equal would differ in the files of their next checkpoints."""
    layout = row_layout(specs.Array((), np.int32))
    table = Table("table", layout, 8, Fifo(), rate_limiter=Queue(8), max_times_sampled=1)

    def fill(replay, start):
        writer = replay.writer(1)
        for step in range(start, start + 4):
            index = writer.append(np.int32(step))
            writer.create_item("table", 1.0, index, index + 1)
        writer.end_episode()

    def contents(replay, name):
        (tmp_path / name).mkdir()
        replay.save(tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    with InProcessReplay([table]) as whole, InProcessReplay([table]) as resumed:
        fill(whole, 0)
        next(whole.sampler("table", 4))  # All four rows are free.
        contents(whole, "middle")
        resumed.restore(tmp_path / "middle")
        for replay in (whole, resumed):
            fill(replay, 10)
        assert contents(whole, "whole") == contents(resumed, "resumed")


def test_a_queue_is_restored_where_it_has_other_room(tmp_path):
    """A thread that writes in turns leaves room for more than processes do, and one may go on with the other's."""

    def queue(size):
        limits = {"sampler": Fifo(), "rate_limiter": Queue(size), "max_times_sampled": 1}
        return InProcessReplay([pair_table(max_size=size, **limits)])

    def fill(replay, numbers):
        writer = replay.writer(1)
        for number in numbers:
            index = writer.append(make_step(number))
            writer.create_item("pairs", 1.0, index, index + 1, inline=np.float32(number))
        writer.close()

    with queue(4) as small, queue(9) as large, queue(2) as smallest:
        fill(small, range(4))
        next(small.sampler("pairs", 3))
        fill(small, range(4, 6))  # Now they go over the end of its slots.
        small.save(tmp_path)
        large.restore(tmp_path)
        assert large.info("pairs")._replace(max_size=4) == small.info("pairs")
        fill(large, range(6, 12))
        assert not large.can_insert("pairs")
        drawn = next(large.sampler("pairs", 9))
        assert drawn.sample.data.value.tolist() == list(range(3, 12))
        assert len(set(drawn.keys.tolist())) == 9 and large.info("pairs").size == 0
        store = large.shared.stores[0]
        assert store.num_rows - 1 == store.num_free, "each row is given back"
        with pytest.raises(CheckpointError, match="has room for 2 items, and 3 were saved"):
            smallest.restore(tmp_path)
        with InProcessReplay([pair_table(max_size=9)]) as other, pytest.raises(CheckpointError, match="in max_size"):
            other.restore(tmp_path)


BLOCK_TABLES = {
    "uniform": pair_table(max_size=23),
    "prioritised": pair_table(max_size=23, sampler=Prioritized(0.7)),
    "heaps": pair_table(max_size=23, sampler=MaxHeap(), remover=MinHeap()),
    "queue": pair_table(max_size=23, sampler=Fifo(), rate_limiter=Queue(23), max_times_sampled=1),
    "twice": pair_table(max_size=23, sampler=Uniform(), max_times_sampled=2),
}


@pytest.mark.parametrize("name", BLOCK_TABLES)
def test_a_block_enters_a_table_as_its_items_one_by_one_would(name):
    """Served replay puts blocks in; `Writer` items one by one."""
    table, rng = BLOCK_TABLES[name], np.random.default_rng(0)
    with InProcessReplay([table]) as single, InProcessReplay([table]) as block:
        for start in range(0, 120, 10):
            numbers, columns = range(start, start + 10), [np.zeros((10, 2), np.float32), np.zeros(10, np.int32)]
            for i, number in enumerate(numbers):
                columns[0][i], columns[1][i] = make_step(number)["observation"], number
            priorities = np.where(rng.random(10) < 0.3, np.nan, rng.random(10) * 3)
            writer = single.writer(1)
            limited = []
            for number, priority in zip(numbers, priorities, strict=True):
                if not single.can_insert("pairs"):
                    limited.append(number)
                    continue
                index = writer.append(make_step(number))
                given = None if np.isnan(priority) else priority
                writer.create_item("pairs", given, index, index + 1, inline=np.float32(number))
            writer.close()
            leaves = [columns[1], columns[0]]  # Those of a dict come in the order of its keys.
            store, items = block.shared.stores[0], block.shared.items["pairs"]
            rows = store.add_block(leaves, np.zeros(0, np.int64), 0)
            put = 0
            while (
                more := items.insert_block(priorities[put:], np.stack([rows, rows], 1)[put:], [columns[1][put:]])
            ) > 0:
                put += more
            store.release_references(rows)
            assert put == 10 - len(limited)
            assert single.info("pairs") == block.info("pairs")
            ours, theirs = single.contents("pairs")[0], block.contents("pairs")[0]
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
            a, b = next(single.sampler("pairs", 3)), next(block.sampler("pairs", 3))
            np.testing.assert_array_equal(a.keys, b.keys)
            for x, y in zip((*a.sample.info, *a.sample.data), (*b.sample.info, *b.sample.data), strict=True):
                np.testing.assert_array_equal(x, y)
        assert store.num_rows - 1 - store.num_free == block.info("pairs").size
