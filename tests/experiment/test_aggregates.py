"""Aggregates on numbers that are known: by hand, by scipy, and by rliable 1.2.0, which was run once on `SCORES`."""

import numpy as np
import pytest
from scipy import stats

from agentkit.experiment.evaluation import aggregates

# Seven runs of one algorithm and six of another on five tasks: ``default_rng(7)``, rounded to two digits.
_GENERATOR = np.random.default_rng(7)
SCORES = np.round(_GENERATOR.normal(0.6, 0.3, (7, 5)), 2)
OTHERS = np.round(_GENERATOR.normal(0.5, 0.4, (6, 5)), 2)


def by_task(matrix):
    return list(np.asarray(matrix, float).T)


def value_of(statistic, matrix):
    return float(aggregates.estimate(statistic, by_task(matrix), 10).value)


@pytest.mark.parametrize(
    ("statistic", "value", "interval"),
    [
        (aggregates.interquartile_mean, 0.48684210526315796, (0.3947, 0.5668)),
        (aggregates.median, 0.4557142857142857, (0.3657, 0.5729)),
        (aggregates.mean, 0.47, (0.3883, 0.5509)),
        (aggregates.optimality_gap, 0.53, (0.4517, 0.6117)),
    ],
)
def test_values_and_intervals_are_rliables(statistic, value, interval):
    found = aggregates.estimate(statistic, by_task(SCORES), 20_000)
    assert found.value == pytest.approx(value)
    np.testing.assert_allclose([found.low, found.high], interval, atol=0.006)


def test_improvement_and_profile_are_rliables():
    found = aggregates.probability_of_improvement(by_task(SCORES), by_task(OTHERS), 5_000)
    assert found.value == pytest.approx(0.47619047619047616)
    np.testing.assert_allclose([found.low, found.high], [0.3238, 0.6357], atol=0.015)
    profile = aggregates.performance_profile([runs[None] for runs in by_task(SCORES)], np.linspace(0, 1, 5))
    np.testing.assert_allclose(profile[0], [0.97142857, 0.8, 0.48571429, 0.08571429, 0.0])


def test_values_by_hand():
    matrix = [[0.0, 10.0], [1.0, 20.0], [2.0, 60.0], [5.0, 70.0]]
    assert value_of(aggregates.interquartile_mean, matrix) == np.mean([2, 5, 10, 20])
    assert value_of(aggregates.median, matrix) == value_of(aggregates.mean, matrix) == 21.0  # of 2 and 40
    assert value_of(aggregates.optimality_gap, [[0.5, 2.0], [0.75, 3.0]]) == pytest.approx(1 - 3.25 / 4)
    one, other = [np.array([1.0, 2.0, 3.0])], [np.array([2.0, 0.0])]
    assert float(aggregates.probability_of_improvement(one, other, 10).value) == pytest.approx(
        4.5 / 6
    )  # A tie is half.


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11])
def test_the_interquartile_mean_cuts_as_scipy_does(size):
    runs = np.random.default_rng(size).normal(size=size)
    assert value_of(aggregates.interquartile_mean, runs[:, None]) == pytest.approx(stats.trim_mean(runs, 0.25))


def test_intervals_are_of_tasks_apart_and_narrow_with_runs():
    """Two tasks of one score each, far apart: drawing runs across tasks would find an interval between them."""
    apart = [np.full(5, 0.0), np.full(3, 100.0)]  # Also: tasks with different numbers of runs.
    found = aggregates.estimate(aggregates.mean, apart, 500)
    assert (found.low, found.value, found.high) == (50.0, 50.0, 50.0)
    generator = np.random.default_rng(0)
    widths = [
        float(found.high - found.low)
        for found in (aggregates.estimate(aggregates.mean, [generator.normal(size=n)], 4_000) for n in (10, 1_000))
    ]
    assert 5 < widths[0] / widths[1] < 20  # As the square root of 100.
    assert widths[1] == pytest.approx(2 * 1.96 / np.sqrt(1_000), rel=0.1)
