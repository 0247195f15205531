import numpy as np

from agentkit import specs
from agentkit.replay import Fifo, InProcessReplay, Queue, Table, row_layout
from agentkit.testing.replay import ReplayContract


class TestInProcessReplay(ReplayContract):
    resumable = True

    def make_replay(self, tables, **kwargs):
        return InProcessReplay(tables, **kwargs)


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
