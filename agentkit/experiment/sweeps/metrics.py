"""Says what the evaluations of a trial's seeds are worth: while it runs, and when all of them have ended."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentkit.counting import due_step
from agentkit.errors import ConfigError


def reports(
    evaluations: Sequence[Sequence[dict[str, float]]], finished: Sequence[bool], num_steps: int, period: int = 1
) -> list[tuple[int, float]]:
    """Returns what a trial is judged by while it runs: pairs of a step and a return, in order.

    The first seed counts alone, then the mean of two, and so on, each at its steps behind those of the seeds before:
    what is reported does not depend on how many seeds run at the same time. Of each seed its newest return counts, see
    `metric_of`.

    An evaluation counts at the step at which it was due, see `due_step`: pruners compare equal steps alone.

    Args:
        evaluations: the records of each seed.
        finished: whether each seed's run has.
        num_steps: of a run.
        period: steps between evaluations.

    >>> reports([[{"steps": 5, "episode_return": 1.0}, {"steps": 10, "episode_return": 2.0}],
    ...          [{"steps": 5, "episode_return": 3.0}]], [True, False], num_steps=10)
    [(5, 1.0), (10, 2.0), (15, 2.0)]
    """
    found: list[tuple[int, float]] = []
    curves = [_curve(records, num_steps, period) for records in evaluations]
    for i, curve in enumerate(curves):
        found += [(i * num_steps + due, _mean_at(curves[: i + 1], due)) for due in curve.steps]
        if not finished[i]:
            break
    return found


def has_taken_all(evaluations: Sequence[Sequence[dict[str, float]]], finished: Sequence[bool], num_steps: int) -> bool:
    """Returns True if no seed of a trial has steps left: its run has ended, or was evaluated at its last step."""
    return all(
        ended or (bool(records) and records[-1]["steps"] >= num_steps)
        for ended, records in zip(finished, evaluations, strict=True)
    )


def metric_of(evaluations: Sequence[Sequence[dict[str, float]]], metric: str, num_steps: int, period: int = 1) -> float:
    """Returns a trial's value: the metric of its seeds' mean returns, step by step.

    Steps count from where each seed has been evaluated. Between its evaluations, of which a seed may leave some out
    whose episodes are long, its newest return counts; so does the last one of a seed that ended before others, as by
    `stop_at_return`.

    Args:
        evaluations: the records of each seed; all have ended.
        metric: "last", "best" or "mean".
        num_steps: of a run.
        period: steps between evaluations.

    Raises:
        ConfigError: a seed has made none.

    >>> metric_of([[{"steps": 5, "episode_return": 4.0}, {"steps": 10, "episode_return": 1.0}],
    ...            [{"steps": 5, "episode_return": 0.0}]], "best", num_steps=10)
    2.0
    """
    if not all(evaluations):
        raise ConfigError("A trial has made no evaluation: let the runs evaluate at least once.")
    curves = [_curve(records, num_steps, period) for records in evaluations]
    begin = max(curve.steps[0] for curve in curves)
    steps = sorted({due for curve in curves for due in curve.steps if due >= begin})
    means = np.array([_mean_at(curves, due) for due in steps])
    if metric == "best":
        finite = means[np.isfinite(means)]
        return float(finite.max() if finite.size else means[-1])
    return float(means[-1] if metric == "last" else np.mean(means))


class _Curve(NamedTuple):
    """Holds a seed's returns and the steps at which they were due, in order."""

    steps: list[int]
    returns: list[float]


def _curve(records: Sequence[dict[str, float]], num_steps: int, period: int) -> _Curve:
    steps: list[int] = []
    for record in records:
        steps.append(due_step(int(record["steps"]), steps[-1] if steps else 0, period, num_steps))
    return _Curve(steps, [record["episode_return"] for record in records])


def _mean_at(curves: Sequence[_Curve], due: int) -> float:
    """Returns the mean of each seed's newest return at a step; of those that have one by then."""
    newest = [(curve, bisect.bisect_right(curve.steps, due) - 1) for curve in curves]
    return float(np.mean([curve.returns[k] for curve, k in newest if k >= 0]))
