"""Inserts and samples that take turns; and tables for data that is no trajectory."""

import threading
import time

import numpy as np
import pytest

from agentkit import specs
from agentkit.errors import ConfigError, ReplayTimeoutError
from agentkit.replay import Fifo, InProcessReplay, Lockstep, Queue, Select, Table, queue_table, row_layout
from agentkit.testing.replay import make_step, pair_table, write_pairs
from tests.replay.served.pair import Served

pytestmark = pytest.mark.both_stacks

BACKENDS = ["in_process", "served", pytest.param("reverb", marks=pytest.mark.reverb)]


def make_replay(backend, table):
    if backend == "in_process":
        return InProcessReplay([table], seed=0)
    if backend == "served":
        return Served([table])
    from agentkit.replay import ReverbReplay

    return ReverbReplay([table])


@pytest.mark.parametrize("per_insert", [1, 2, 6])
def test_after_each_insert_exactly_so_many_samples(per_insert):
    limit, inserted, sampled = Lockstep(per_insert, 3), 0, 0
    for _ in range(3):
        assert limit.can_insert(1, size=inserted, inserted=inserted, sampled=0)
        assert not limit.can_sample(1, size=inserted, inserted=inserted, sampled=0)
        inserted += 1
    for _ in range(20):
        counts = {"size": inserted, "inserted": inserted, "sampled": sampled}
        assert not limit.can_insert(1, **counts)
        assert limit.can_sample(per_insert, **counts) and not limit.can_sample(per_insert + 1, **counts)
        if per_insert > 1:
            assert not limit.can_insert(1, **{**counts, "sampled": sampled + per_insert - 1})
        sampled += per_insert
        counts["sampled"] = sampled
        assert limit.can_insert(1, **counts) and not limit.can_insert(2, **counts)
        assert not limit.can_sample(1, **counts)
        inserted += 1


def test_serves_batches_of_which_it_is_a_multiple_and_no_others():
    Lockstep(8, 3).check_batch("t", 8)
    Lockstep(8, 3).check_batch("t", 4)
    with pytest.raises(ConfigError, match="never be drawn"):
        Lockstep(8, 3).check_batch("t", 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_writer_waits_for_the_samples_of_its_last_item(backend):
    table = pair_table(rate_limiter=Lockstep(2, 3), max_size=100)
    with make_replay(backend, table) as replay:
        writer = replay.writer(2, timeout=1.0)
        write_pairs(writer, table.name, range(3))
        info = replay.info(table.name)
        assert (info.num_inserted, info.num_sampled) == (3, 0)
        with pytest.raises(ReplayTimeoutError):
            write_pairs(writer, table.name, [3])
        if backend == "in_process":
            assert replay.info(table.name).num_inserted == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_sides_that_wait_for_each_other_both_end(backend):
    table = pair_table(rate_limiter=Lockstep(4, 5), max_size=1_000)
    with make_replay(backend, table) as replay:
        worst, inserted = [], []

        def write():
            writer = replay.writer(2, timeout=60.0)
            for number in range(60):
                index = writer.append(make_step(number))
                writer.create_item(table.name, 1.0, index, index + 1, inline=np.float32(number))
                info = replay.info(table.name)  # Without a flush: the item is in nevertheless.
                inserted.append(info.num_inserted)
                worst.append(max(0, 4 * (info.num_inserted - 5) - info.num_sampled))

        thread = threading.Thread(target=write)
        thread.start()
        sampler = replay.sampler(table.name, 4, timeout=60.0)
        for _ in range(56):
            next(sampler)
        thread.join(timeout=60.0)
        assert not thread.is_alive()
        deadline = time.monotonic() + 30.0
        while replay.info(table.name).num_sampled < 4 * 56 and time.monotonic() < deadline:
            time.sleep(0.01)
        info = replay.info(table.name)
        assert (info.num_inserted, info.num_sampled) == (60, 4 * 56)
        assert inserted == list(range(1, 61))
        assert max(worst) == 0  # Each item came in when all samples of those before it were drawn.


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_queue_of_rows_gives_each_once_in_order(backend):
    layout = row_layout({"w": specs.BoundedArray((2, 3), np.float32, 0.0, 1.0), "b": specs.Array((), np.int32)})
    assert layout.length is None
    table = queue_table("rows", layout, 5)
    expected = Table("rows", layout, 5, Fifo(), Fifo(), Queue(5), max_times_sampled=1)
    assert table.fingerprint() == expected.fingerprint()
    assert all(source.select is Select.FIRST for source in layout.data.values())
    with make_replay(backend, table) as replay:
        writer = replay.writer(1, timeout=2.0)
        for number in range(5):
            index = writer.append({"w": np.full((2, 3), number, np.float32), "b": np.int32(number)})
            writer.create_item("rows", 1.0, index, index + 1)
        writer.flush()
        sampler = replay.sampler("rows", 1, timeout=10.0)
        for number in range(5):
            data = next(sampler).sample.data
            assert data["w"].shape == (1, 2, 3) and (data["w"] == number).all()
            assert data["b"] == [number]
