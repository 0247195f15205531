"""Says what the evaluations of a trial's seeds are worth: while it runs, and when all of them have ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentkit.counting import due_step
from agentkit.errors import ConfigError


def reports(
    evaluations: Sequence[Sequence[dict[str, float]]], finished: Sequence[bool], num_steps: int, period: int = 1
) -> list[tuple[int, float]]:
    """Returns what a trial is judged by while it runs: pairs of a step and a return, in order.

    The first seed counts alone, then the mean of two, and so on, each at its steps behind those of the seeds before:
    what is reported does not depend on how many seeds run at the same time. A seed that ended early, as by
    `stop_at_return`, counts with its last return from there on.

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
    for i, records in enumerate(evaluations):
        before = [others for others in evaluations[:i] if others]
        newest = 0
        for k, record in enumerate(records):
            mean = float(np.mean([*(_return_at(others, k) for others in before), record["episode_return"]]))
            newest = due_step(int(record["steps"]), newest, period, num_steps)
            found.append((i * num_steps + newest, mean))
        if not finished[i]:
            break
    return found


def has_taken_all(evaluations: Sequence[Sequence[dict[str, float]]], finished: Sequence[bool], num_steps: int) -> bool:
    """Returns True if no seed of a trial has steps left: its run has ended, or was evaluated at its last step."""
    return all(
        ended or (bool(records) and records[-1]["steps"] >= num_steps)
        for ended, records in zip(finished, evaluations, strict=True)
    )


def metric_of(evaluations: Sequence[Sequence[dict[str, float]]], metric: str) -> float:
    """Returns a trial's value: the metric of its seeds' mean returns, evaluation by evaluation.

    A seed that ended before others, as by `stop_at_return`, counts with its last return from there on.

    Args:
        evaluations: the records of each seed; all have ended.
        metric: "last", "best" or "mean".

    Raises:
        ConfigError: a seed has made none.

    >>> metric_of([[{"episode_return": 4.0}, {"episode_return": 1.0}], [{"episode_return": 0.0}] * 2], "best")
    2.0
    """
    if not all(evaluations):
        raise ConfigError("A trial has made no evaluation: let the runs evaluate at least once.")
    length = max(len(records) for records in evaluations)
    means = np.array([np.mean([_return_at(records, k) for records in evaluations]) for k in range(length)])
    if metric == "best":
        finite = means[np.isfinite(means)]
        return float(finite.max() if finite.size else means[-1])
    return float(means[-1] if metric == "last" else np.mean(means))


def _return_at(records: Sequence[dict[str, float]], k: int) -> float:
    return records[min(k, len(records) - 1)]["episode_return"]
