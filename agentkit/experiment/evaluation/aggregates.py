"""Compares algorithms by few runs each: aggregates with stratified bootstrap intervals, in plain numpy.

After Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", NeurIPS 2021 (https://arxiv.org/abs/2108.13264), whose own library is rliable: it needs arch,
which fails to import with pandas 3, so tests keep its numbers instead. Equations are that paper's.
Scores are a list with an array of runs ``[R_m]`` for each task m, so that tasks may have different numbers of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Scores = Sequence[np.ndarray]
Resampled = list[np.ndarray]
"""For each task, bootstrap samples of its runs ``[samples, R_m]``."""
Statistic = Callable[[Resampled], np.ndarray]
"""Maps resampled scores to a value ``[samples]``, or several ``[samples, K]``."""


class Estimate(NamedTuple):
    """Holds a value and its 95 % bootstrap interval, each ``[]`` or ``[K]``."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(scores: Resampled) -> np.ndarray:
    """Returns the mean of the middle half of all runs ``[samples]``: a quarter is cut at either end (section 4.3)."""
    pooled = np.sort(np.concatenate(scores, axis=1), axis=1)
    cut = pooled.shape[1] // 4
    return pooled[:, cut : pooled.shape[1] - cut].mean(axis=1)


def median(scores: Resampled) -> np.ndarray:
    """Returns the median over tasks of the tasks' means ``[samples]``."""
    return np.median(_task_means(scores), axis=1)


def mean(scores: Resampled) -> np.ndarray:
    """Returns the mean over tasks of the tasks' means ``[samples]``."""
    return _task_means(scores).mean(axis=1)


def optimality_gap(scores: Resampled, target: float = 1.0) -> np.ndarray:
    """Returns by how much runs miss the target on average ``[samples]``; more than the target counts as the target.

    For scores that are normalised, so that 1 is as good as one wants (section 4.3).
    """
    pooled = np.concatenate(scores, axis=1)
    return target - np.minimum(pooled, target).mean(axis=1)


def performance_profile(scores: Resampled, thresholds: np.ndarray) -> np.ndarray:
    """Returns the share of runs with a score above each threshold ``[samples, K]`` (equation 1)."""
    pooled = np.concatenate(scores, axis=1)
    return np.stack([(pooled > threshold).mean(axis=1) for threshold in thresholds], axis=1)


def estimate(statistic: Statistic, scores: Scores, num_samples: int = 10_000, seed: int = 0) -> Estimate:
    """Returns a statistic of scores, and the interval of its stratified bootstrap.

    Runs are drawn with replacement within each task (section 4.1); the interval is from the 2.5th to the 97.5th
    percentile.

    Args:
        statistic: one of this file's, or your own.
        scores: runs ``[R_m]`` of each task.
        num_samples: of the bootstrap.
        seed: of the drawing.
    """
    plain = [np.asarray(runs, float)[None] for runs in scores]
    drawn = _resample(scores, num_samples, np.random.default_rng(seed))
    return _with_interval(statistic(plain)[0], statistic(drawn))


def probability_of_improvement(scores: Scores, others: Scores, num_samples: int = 10_000, seed: int = 0) -> Estimate:
    """Returns how likely a run of one algorithm beats a run of another, averaged over tasks (equation 2).

    Equal scores count half. Both are resampled.

    Args:
        scores: of the one, runs ``[R_m]`` of each task.
        others: of the other, on the same tasks in the same order.
        num_samples: of the bootstrap.
        seed: of the drawing.
    """
    generator = np.random.default_rng(seed)
    drawn, others_drawn = (_resample(each, num_samples, generator) for each in (scores, others))
    plain, others_plain = ([np.asarray(runs, float)[None] for runs in each] for each in (scores, others))
    return _with_interval(_improvement(plain, others_plain)[0], _improvement(drawn, others_drawn))


def _improvement(scores: Resampled, others: Resampled) -> np.ndarray:
    tasks = []
    for one, other in zip(scores, others, strict=True):
        difference = one[:, :, None] - other[:, None, :]
        tasks.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2)))
    return np.mean(tasks, axis=0)


def _task_means(scores: Resampled) -> np.ndarray:
    return np.stack([runs.mean(axis=1) for runs in scores], axis=1)


def _resample(scores: Scores, num_samples: int, generator: np.random.Generator) -> Resampled:
    return [np.asarray(runs, float)[generator.integers(len(runs), size=(num_samples, len(runs)))] for runs in scores]


def _with_interval(value: np.ndarray, samples: np.ndarray) -> Estimate:
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    return Estimate(value, low, high)
