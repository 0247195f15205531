"""Says what the evaluations of a trial's seeds are worth: while it runs, and when all of them have ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentkit.errors import ConfigError


def reports(
    evaluations: Sequence[Sequence[dict[str, float]]], finished: Sequence[bool], num_steps: int
) -> list[tuple[int, float]]:
    """Returns what a trial is judged by while it runs: pairs of a step and a return, in order.

    The first seed counts alone, then the mean of two, and so on, each at its steps behind those of the seeds before:
    what is reported does not depend on how many seeds run at the same time.

    Args:
        evaluations: the records of each seed.
        finished: whether each seed's run has.
        num_steps: of a run.

    >>> reports([[{"steps": 5, "episode_return": 1.0}, {"steps": 10, "episode_return": 2.0}],
    ...          [{"steps": 5, "episode_return": 3.0}]], [True, False], num_steps=10)
    [(5, 1.0), (10, 2.0), (15, 2.0)]
    """
    found: list[tuple[int, float]] = []
    for i, records in enumerate(evaluations):
        for k, record in enumerate(records):
            values = [others[k]["episode_return"] for others in evaluations[:i] if k < len(others)]
            mean = float(np.mean([*values, record["episode_return"]]))
            found.append((i * num_steps + int(record["steps"]), mean))
        if not finished[i]:
            break
    return found


def metric_of(evaluations: Sequence[Sequence[dict[str, float]]], metric: str) -> float:
    """Returns a trial's value: the metric of its seeds' mean returns, evaluation by evaluation.

    >>> metric_of([[{"episode_return": 4.0}, {"episode_return": 1.0}], [{"episode_return": 0.0}] * 2], "best")
    2.0
    """
    length = min(len(records) for records in evaluations)
    if not length:
        raise ConfigError("A trial has made no evaluation: let the runs evaluate at least once.")
    means = [float(np.mean([records[k]["episode_return"] for records in evaluations])) for k in range(length)]
    return {"last": means[-1], "best": max(means), "mean": float(np.mean(means))}[metric]
