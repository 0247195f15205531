"""Replay contract: saving, restoring, and what must not be restored."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from agentkit import errors
from agentkit.replay.rate_limiter import MinSize, Queue
from agentkit.replay.table import (
    Fifo,
    Lifo,
    Prioritized,
    Table,
)
from agentkit.testing.replay_cases import (
    LONG,
    ReplayCases,
    draw,
    make_step,
    numbers,
    pair_table,
    sequence_layout,
    wait_until,
    write_pairs,
)


class SavingContract(ReplayCases):
    """Checks that saving loses nothing, and that restoring takes nothing foreign."""

    def test_save_and_restore(self, tmp_path: pathlib.Path) -> None:
        """Checks that items, priorities, counts, keys and order come back."""
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
            for priority in (500.0, 0.0):
                replay.update_priorities("pairs", np.array([keys[3]]), np.array([priority]))
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
            np.testing.assert_array_equal(next(sampler).sample.data["action"], actions)
            sampler.close()
            writer = replay.writer(1)
            index = writer.append(make_step(9))
            writer.create_item("pairs", None, index, index + 1, inline=np.float32(9))
            writer.flush()
            found = dict(draw(replay, "pairs", 20))
            assert 9 in found and found[9].priority == 500.0, "the largest priority seen came back"
            writer.close()

    def test_restored_rate_limits_go_on(self, tmp_path: pathlib.Path) -> None:
        """Checks that a full queue is full after it was restored."""
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
        """Checks that the error names the table and the setting that differs."""
        with self.opened(pair_table(max_size=10)) as (replay, writer):
            write_pairs(writer, "pairs", [1])
            replay.save(tmp_path)
        with (
            self.make_replay([pair_table(**({"max_size": 10} | change))]) as replay,
            pytest.raises(errors.CheckpointError, match=f"(?s)pairs.*{field}"),
        ):
            replay.restore(tmp_path)

    def test_other_signatures_and_names_are_refused(self, tmp_path: pathlib.Path) -> None:
        """Checks that the error names the signatures or tables that were saved and expected."""
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
        """Checks a missing checkpoint, and each of its files cut in half or missing."""
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
        """Checks that a writer goes on in mid-episode, or says that it cannot."""
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
            data = next(sampler).sample.data
            assert (data.action.tolist(), data.last[0, 0]) == ([2], 4)
            sampler.close()
            writer.close()
