"""Replay contract: rate limits, counters, closing, threads."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest

from agentkit import errors
from agentkit.replay.rate_limiter import MinSize, Queue, SampleToInsertRatio, Stack
from agentkit.replay.table import (
    Fifo,
    Lifo,
    Prioritized,
    Table,
)
from agentkit.testing.replay_cases import (
    LONG,
    SHORT,
    ReplayCases,
    draw,
    make_step,
    numbers,
    pair_table,
    sequence_layout,
    wait_until,
    write_pairs,
)


class LimitsContract(ReplayCases):
    """Checks rate limits, counters, closing and threads."""

    def test_samples_wait_for_the_minimum_size(self) -> None:
        """Checks that a sampler times out below the minimum size, and serves at it."""
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
            assert next(sampler).sample.data.action.shape == (2,)
            sampler.close()

    def test_a_sampler_that_timed_out_goes_on(self) -> None:
        """Checks that a sampler goes on after a timeout."""
        with self.opened(pair_table(rate_limiter=MinSize(1))) as (replay, writer):
            sampler = replay.sampler("pairs", 1, timeout=SHORT)
            with pytest.raises(errors.ReplayTimeoutError):
                next(sampler)
            write_pairs(writer, "pairs", [5])
            assert wait_until(sampler.ready)
            assert next(sampler).sample.data.action.tolist() == [5]
            sampler.close()

    def test_sampler_wakes_when_items_come(self) -> None:
        """Checks that a waiting sampler is served as soon as another thread has inserted."""
        with self.opened(pair_table(rate_limiter=MinSize(4))) as (replay, writer):
            sampler = replay.sampler("pairs", 2, timeout=LONG)
            got: list[Any] = []
            thread = threading.Thread(target=lambda: got.append(next(sampler)), daemon=True)
            thread.start()
            write_pairs(writer, "pairs", range(4))
            thread.join(LONG)
            assert not thread.is_alive() and got[0].sample.data.action.shape == (2,)
            sampler.close()

    def test_a_full_queue_makes_inserts_wait(self) -> None:
        """Checks that a full queue lets nothing in until something is drawn."""
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
            assert next(sampler).sample.data.action.tolist() == [0, 1, 2, 3]
            sampler.close()
            assert wait_until(lambda: replay.can_insert("pairs"))
            with contextlib.suppress(errors.ReplayTimeoutError):
                hasty.close()

    def test_queue_passes_everything_in_order_between_threads(self) -> None:
        """Checks that nothing is lost, doubled or reordered."""
        queue = pair_table(max_size=8, sampler=Fifo(), rate_limiter=Queue(8), max_times_sampled=1)
        with self.opened(queue) as (replay, writer):
            thread = threading.Thread(target=lambda: write_pairs(writer, "pairs", range(40)), daemon=True)
            thread.start()
            assert numbers(draw(replay, "pairs", 40, batch_size=4)) == list(range(40))
            thread.join(LONG)
            assert not thread.is_alive()

    def test_stack(self) -> None:
        """Checks that the newest item comes first."""
        stack = pair_table(max_size=4, sampler=Lifo(), remover=Lifo(), rate_limiter=Stack(4), max_times_sampled=1)
        with self.opened(stack) as (replay, writer):
            write_pairs(writer, "pairs", range(4))
            assert numbers(draw(replay, "pairs", 4, batch_size=4)) == [3, 2, 1, 0]

    def test_samples_per_insert_holds_both_sides(self) -> None:
        """Inserts and samples stop exactly at their bounds."""
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

    def test_info_and_reset(self) -> None:
        """Checks that counters count, and that a reset zeroes them and forgets the keys."""
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
        """Checks names, their order, and names that clash."""
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
        """Checks that everything closes twice, and that a closed part says so."""
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
        """Checks that nobody waits for a replay that is gone."""
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
        """Checks that a writer's items stay whole when it is closed or collected in mid-episode."""
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
            data = next(sampler).sample.data
            sampler.close()
            assert data.action.tolist() == [0, 1, 2, 3, 50, 51, 52, 53]
            np.testing.assert_array_equal(data.last[:, 0], [1, 2, 3, 4, 50, 51, 52, 53])

    def test_threads_write_and_read_at_once(self) -> None:
        """Checks that every sampled item is whole: its leaves agree on the number of its steps."""
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
                data = next(sampler).sample.data
                np.testing.assert_array_equal(data.first[:, 0], data.action)
                np.testing.assert_array_equal(data.first[:, 1], -data.action)
                np.testing.assert_array_equal(data.value, data.action)
                span = data.last[:, 0] - data.action
                assert ((span >= 0) & (span <= 2)).all()
            for thread in threads:
                thread.join(LONG)
            assert wait_until(lambda: replay.info("pairs").num_inserted == 301)
            sampler.close()
