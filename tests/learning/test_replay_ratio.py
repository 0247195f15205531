import itertools

import pytest

from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import rate_limit

pytestmark = pytest.mark.both_stacks


def _drive(plan: BatchPlan, updates_per_insert: float, min_size: int, num_inserts: int) -> list[int]:
    """Updates after each insert, taking turns as the single process does."""
    limiter = rate_limit(plan, updates_per_insert, min_size)
    portion = plan.batch_size * plan.num_updates
    sampled = 0
    updates = []
    for size in range(1, num_inserts + 1):
        assert limiter.can_insert(1, size=size - 1, inserted=size - 1, sampled=sampled)
        while limiter.can_sample(portion, size=size, inserted=size, sampled=sampled):
            sampled += portion
        updates.append(sampled // plan.batch_size)
    return updates


@pytest.mark.parametrize("rate", [0.1, 0.25, 1.0, 2.0])
@pytest.mark.parametrize("num_updates", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 32])
def test_updates_per_insert_hold_on_average(rate: float, num_updates: int, batch_size: int) -> None:
    min_size, num_inserts = 20, 400
    updates = _drive(BatchPlan("t", batch_size, num_updates), rate, min_size, num_inserts)
    assert updates[: min_size - 1] == [0] * (min_size - 1)
    ahead = 2 * max(num_updates, rate)
    expected = rate * (num_inserts - min_size)
    assert expected <= updates[-1] <= expected + ahead + 1e-6
    # At no time more than its allowance ahead or one call behind.
    for inserted, done in enumerate(updates[min_size:], start=min_size + 1):
        due = rate * (inserted - min_size)
        assert due - num_updates <= done <= due + ahead + 1e-6


def test_one_update_per_step_is_exactly_that() -> None:
    updates = _drive(BatchPlan("t", 64), 1.0, 10, 60)
    assert [b - a for a, b in itertools.pairwise(updates[20:])] == [1] * 39


@pytest.mark.parametrize(("min_size", "expected"), [(10, 100), (300, 300), (20_000, 1_000)])
def test_actors_may_be_ahead_by_what_replay_holds_before_the_first_update(min_size: int, expected: int) -> None:
    limiter, first = rate_limit(BatchPlan("t", 8), 1.0, min_size), min_size + 1  # No update was made yet.
    counts = {"size": first, "sampled": 0}
    lead = next(n for n in itertools.count(first) if not limiter.can_insert(1, inserted=n, **counts)) - min_size
    assert lead == expected + 2, "and the two calls that the learner may be ahead"


@pytest.mark.parametrize("plan", [BatchPlan("t", 0, 2), BatchPlan("t", 2, 0)])
def test_an_empty_batch_is_refused(plan: BatchPlan) -> None:
    with pytest.raises(ConfigError, match=f"found {plan.batch_size} and {plan.num_updates}"):
        rate_limit(plan, 1.0, 1)


def test_one_item_and_one_update_a_call_are_enough() -> None:
    assert rate_limit(BatchPlan("t", 1, 1), 1.0, 1).can_sample(1, size=1, inserted=1, sampled=0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="positive number of updates per step"):
        rate_limit(BatchPlan("t", 1), rate, 1)
