"""Replay for one process against the replay and adder contracts, and what it promises: who may go, how far ahead."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("reverb")

from agentkit import errors
from agentkit.core import BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.replay import InProcessReplay
from agentkit.replay.rate_limiter import Queue, SampleToInsertRatio
from agentkit.replay.reverb.replay import ReverbReplay
from agentkit.replay.reverb.single_process import NUM_PREFETCHED, SingleProcessReverbReplay
from agentkit.replay.reverb.streams import IN_FLIGHT
from agentkit.replay.table import Fifo
from agentkit.testing.adder import AdderContract
from agentkit.testing.replay import LONG, SHORT, ReplayContract, make_step, pair_table, write_pairs
from tests.replay.writing_in_turns import draw_too_early_in_turns, write_much_in_turns

pytestmark = pytest.mark.reverb


class TestReverbInTurns(ReplayContract):
    prefetches = True

    def make_replay(self, tables, **kwargs):
        return SingleProcessReverbReplay(tables, **kwargs)


class TestAddersOnReverbInTurns(AdderContract):
    def make_replay(self, tables):
        return SingleProcessReverbReplay(tables, default_timeout=LONG)


def turns(replay, plan, num_steps, start=0):
    """One step where it may be inserted, then what is due: the updates done after each step."""
    writer, dataset = replay.writer(1), ReplayDataset(replay, plan)
    updates, done = 0, []
    for i in range(start, start + num_steps):
        assert replay.can_insert("pairs")
        index = writer.append(make_step(i))
        writer.create_item("pairs", 1.0, index, index + 1, inline=np.float32(0))
        while dataset.ready():
            batch = next(dataset).sample
            assert batch.data.action.shape == (plan.batch_size,) and batch.data.action.max() <= i
            updates += 1
        done.append(updates)
    dataset.close()
    writer.close()
    return done


@pytest.mark.parametrize("samples_per_insert, batch_size", [(64.0, 64), (4.0, 8), (12.0, 4)])
def test_learning_is_due_after_the_same_inserts_as_in_process(samples_per_insert, batch_size):
    limiter = SampleToInsertRatio(samples_per_insert, 20, 4 * max(batch_size, samples_per_insert))
    table, plan = pair_table(max_size=80, rate_limiter=limiter), BatchPlan("pairs", batch_size)
    with InProcessReplay([table], seed=0) as replay:
        expected = turns(replay, plan, 120)
    with SingleProcessReverbReplay([table], default_timeout=LONG) as replay:
        assert turns(replay, plan, 120) == expected
        assert replay.info("pairs")[1:] == (80, 80, 120, expected[-1] * batch_size)
    assert expected[18] == 0 < expected[-1]


def test_how_far_a_stream_draws_ahead():
    """What the class says, so that a priority or an item is never older than this."""
    batch = 64
    limiter = SampleToInsertRatio(64.0, 20, 256.0)
    with SingleProcessReverbReplay([pair_table(max_size=80, rate_limiter=limiter)], default_timeout=LONG) as replay:
        turns_done = turns(replay, BatchPlan("pairs", batch), 40)
        time.sleep(0.3)
        drawn = replay._remote_info("pairs").num_sampled - turns_done[-1] * batch
        assert 0 <= drawn <= 2 * IN_FLIGHT + (1 + NUM_PREFETCHED) * batch
        assert replay.info("pairs").num_sampled == turns_done[-1] * batch


def test_another_thread_waits_for_its_turn():
    limiter = SampleToInsertRatio(4.0, 4, 8.0)
    with SingleProcessReverbReplay([pair_table(max_size=100, rate_limiter=limiter)], default_timeout=LONG) as replay:
        sampler, got = replay.sampler("pairs", 4), []
        thread = threading.Thread(target=lambda: got.extend(next(sampler) for _ in range(20)), daemon=True)
        thread.start()
        writer = replay.writer(1)
        write_pairs(writer, "pairs", range(23))
        thread.join(LONG)
        assert len(got) == 20
        with pytest.raises(errors.ReplayTimeoutError, match="nobody samples"):
            write_pairs(replay.writer(1, timeout=SHORT), "pairs", range(9))


def test_what_one_thread_writes_does_not_wait_for_what_only_it_could_draw():
    write_much_in_turns(SingleProcessReverbReplay)


def test_who_would_wait_for_itself_is_told_at_once():
    draw_too_early_in_turns(SingleProcessReverbReplay)


def test_a_queue_keeps_its_limit_on_the_server():
    """Each item once and in order, no item drawn that nobody asked for."""
    table = pair_table(max_size=8, sampler=Fifo(), rate_limiter=Queue(8), max_times_sampled=1)
    with SingleProcessReverbReplay([table], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        write_pairs(writer, "pairs", range(8))
        assert not replay.can_insert("pairs")
        sampler = replay.sampler("pairs", 2)
        assert next(sampler).sample.data.action.tolist() == [0, 1]
        time.sleep(0.3)
        assert replay.info("pairs").num_sampled == 4  # one batch ahead
        writer.close()


def test_what_was_drawn_ahead_is_owed_after_a_restore(tmp_path):
    limiter = SampleToInsertRatio(64.0, 20, 256.0)
    table, plan = pair_table(max_size=80, rate_limiter=limiter), BatchPlan("pairs", 64)
    with SingleProcessReverbReplay([table], default_timeout=LONG) as replay:
        first = turns(replay, plan, 60)[-1]
        replay.save(tmp_path)
    with SingleProcessReverbReplay([table], default_timeout=LONG) as replay:
        replay.restore(tmp_path)
        assert replay.info("pairs")[1:] == (60, 80, 60, first * 64)
        assert turns(replay, plan, 10, start=60)[-1] == 10
    with ReverbReplay([table]) as replay, pytest.raises(errors.CheckpointError, match="no rate limits"):
        replay.restore(tmp_path)


def test_the_contents_of_a_server_with_limits_go_on_in_turns(tmp_path):
    limiter = SampleToInsertRatio(64.0, 20, 256.0)
    table, plan = pair_table(max_size=80, rate_limiter=limiter), BatchPlan("pairs", 64)
    with ReverbReplay([table], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        write_pairs(writer, "pairs", range(22))
        writer.close()
        replay.save(tmp_path)
    with SingleProcessReverbReplay([table], default_timeout=LONG) as replay:
        replay.restore(tmp_path)
        assert turns(replay, plan, 10, start=22)[-1] == 12 + 4  # two items' worth, and the buffer of four batches


def test_settings_that_make_no_sense_in_turns():
    with pytest.raises(TypeError, match="address"):
        SingleProcessReverbReplay([pair_table()], address="localhost:1")
