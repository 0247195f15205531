from typing import Any

import numpy as np
import pytest

from agentkit import specs
from agentkit.core import BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.errors import ConfigError, ReplayClosedError, ReplayTimeoutError, UnknownNameError
from agentkit.replay import (
    Fifo,
    FromStep,
    InProcessReplay,
    Layout,
    MinSize,
    Queue,
    SampleToInsertRatio,
    Select,
    Table,
    row_layout,
)
from agentkit.types import TableInfo


def _replay(num_items: int = 50, min_size: int = 1, seed: int = 0) -> InProcessReplay:
    """Items are numbers n with the pair (n, -n)."""
    step = {"n": specs.Array((), np.float32), "pair": specs.Array((2,), np.float32)}
    layout = Layout(step, {"n": FromStep(0, Select.FIRST), "pair": FromStep(1, Select.FIRST)})
    replay = InProcessReplay([Table("items", layout, 1_000, rate_limiter=MinSize(min_size))], seed=seed)
    writer = replay.writer(history=1)
    for n in range(num_items):
        index = writer.append({"n": np.float32(n), "pair": np.float32([n, -n])})
        writer.create_item("items", 1.0, index, index + 1)
    return replay


def test_one_batch_has_a_batch_axis() -> None:
    with _replay() as replay:
        keys, batch = next(ReplayDataset(replay, BatchPlan("items", 4)))
        assert batch.data["n"].shape == (4,) and batch.data["pair"].shape == (4, 2)
        assert all(np.shape(field) == (4,) for field in (keys, *batch.info))


def test_several_updates_have_an_axis_of_their_own_and_are_the_same_items() -> None:
    with _replay() as replay, _replay() as same:
        keys, stacked = next(ReplayDataset(replay, BatchPlan("items", 4, num_updates=3)))
        flat_keys, flat = next(ReplayDataset(same, BatchPlan("items", 12)))
        assert stacked.data["n"].shape == (3, 4) and stacked.data["pair"].shape == (3, 4, 2)
        assert all(np.shape(field) == (3, 4) for field in (keys, *stacked.info))
        assert keys.dtype == np.uint64
        np.testing.assert_array_equal(stacked.data["pair"].reshape(12, 2), flat.data["pair"])
        np.testing.assert_array_equal(keys.reshape(-1), flat_keys)
        # Info belongs to its item: keys count from the first item inserted, in order.
        order = np.argsort(keys.reshape(-1), kind="stable")
        assert np.all(np.diff(stacked.data["n"].reshape(-1)[order]) >= 0)


def test_equal_seeds_give_equal_batches() -> None:
    def draw(seed: int) -> np.ndarray:
        with _replay(seed=seed) as replay:
            dataset = ReplayDataset(replay, BatchPlan("items", 8))
            return np.stack([next(dataset).sample.data["n"] for _ in range(3)])

    np.testing.assert_array_equal(draw(1), draw(1))
    assert np.any(draw(1) != draw(2))


def test_it_is_ready_when_the_rate_limit_lets_a_batch_through() -> None:
    with _replay(num_items=3, min_size=4) as replay:
        dataset = ReplayDataset(replay, BatchPlan("items", 2), timeout=0.05)
        assert not dataset.ready()
        with pytest.raises(ReplayTimeoutError):
            next(dataset)
        writer = replay.writer(history=1)
        writer.append({"n": np.float32(9), "pair": np.zeros(2, np.float32)})
        writer.create_item("items", 1.0, 0, 1)
        assert dataset.ready() and next(iter(dataset)).sample.data["n"].shape == (2,)
        dataset.close()
        with pytest.raises(ReplayClosedError):
            next(dataset)


def test_a_replay_that_draws_ahead_is_judged_by_what_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Reverb, whose sampler has drawn, or not yet drawn, more than it gave."""
    with _replay(num_items=3, min_size=3) as replay:
        dataset = ReplayDataset(replay, BatchPlan("items", 2))
        monkeypatch.setattr(dataset._sampler, "ready", lambda: False)
        assert not dataset.ready()
        replay.resumable = False
        assert dataset.ready()
        limit = SampleToInsertRatio(2.0, 3, (2.0, 100.0))
        dataset._limiter = limit  # 3 inserts are worth 6 samples, of which 2 must be left.
        next(dataset), next(dataset)
        assert not dataset.ready()


def test_impossible_plans_are_refused_when_built() -> None:
    with _replay() as replay:
        with pytest.raises(ConfigError, match="larger than the table"):
            ReplayDataset(replay, BatchPlan("items", 600, num_updates=2))
        with pytest.raises(ConfigError, match="at least 1, found 0"):
            ReplayDataset(replay, BatchPlan("items", 4, num_updates=0))
        with pytest.raises(UnknownNameError, match="Did you mean 'items'"):
            ReplayDataset(replay, BatchPlan("item", 4))


class _DrawsAhead:
    """A replay of one table of two items, whose sampler may have drawn what it does not hand out yet."""

    resumable = False

    def __init__(self, max_times_sampled: int) -> None:
        layout = row_layout(specs.Array((), np.int32))
        self._table = Table("queue", layout, 4, Fifo(), rate_limiter=Queue(4), max_times_sampled=max_times_sampled)
        self.num_sampled = 0

    def table(self, name: str) -> Table:
        return self._table

    def info(self, name: str) -> TableInfo:
        return TableInfo(name, 2 - self.num_sampled, 4, 2, self.num_sampled)

    def sampler(self, name: str, batch_size: int, timeout: float | None = None) -> Any:
        return self

    def ready(self) -> bool:
        return False  # What was drawn is still on its way.


@pytest.mark.parametrize(("max_times_sampled", "due"), [(1, True), (2, False)])
def test_what_a_sampler_drew_ahead_of_a_queue_is_due(max_times_sampled: int, due: bool) -> None:
    """It is in the table no more; elsewhere an empty table means that nothing is due."""
    replay: Any = _DrawsAhead(max_times_sampled)
    dataset = ReplayDataset(replay, BatchPlan("queue", 2))
    assert dataset.ready()
    replay.num_sampled = 2
    assert dataset.ready() is due
