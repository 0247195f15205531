"""Checks that an agent learns: short trainings that must reach a return, for several seeds."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

from agentkit.agents.common.agent import Agent
from agentkit.experiment import ExperimentConfig, run

MARGINS_VARIABLE = "AGENTKIT_LEARNING_MARGINS"
"""Names the environment variable with the path of a file to which `check_returns` appends what it saw."""


def learns(
    agent: Agent,
    environment: str | Callable[[int], Any],
    num_steps: int,
    threshold: float,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    num_episodes: int = 20,
    **settings: Any,
) -> list[float]:
    """Trains once for each seed and evaluates at the end.

    Choose `num_steps` about three times what just suffices, so that the check fails when learning is
    broken and not when it is unlucky.

    Args:
        agent: what to train.
        environment: as in `ExperimentConfig`.
        num_steps: environment steps of each training.
        threshold: the mean evaluation return that every seed must reach.
        seeds: one training each.
        num_episodes: of each evaluation.
        **settings: other fields of `ExperimentConfig`.

    Returns:
        The mean evaluation return of each seed.

    Raises:
        AssertionError: a seed fell short of the threshold; the message has all figures.
    """
    returns = []
    for seed in seeds:
        experiment = ExperimentConfig(
            agent=agent,
            environment=environment,
            num_steps=num_steps,
            seed=seed,
            evaluation_period=num_steps,
            evaluation_episodes=num_episodes,
            **settings,
        )
        returns.append(run(experiment).evaluations[-1]["episode_return"])
    check_returns(returns, threshold, seeds, f"{num_steps:,} steps")
    return returns


def check_returns(returns: Sequence[float], threshold: float, seeds: Sequence[int], after: str) -> None:
    """Checks that the returns of all seeds reach the threshold, and notes them where a file for it is named.

    The file is what the environment variable `MARGINS_VARIABLE` says, if it is set. Each check appends one line of
    CSV: the test that pytest is in, the threshold, the least return, and the returns.

    Args:
        returns: of each seed.
        threshold: the least that each must be.
        seeds: for the message.
        after: how long they were trained, for the message.

    Raises:
        AssertionError: a seed fell short of the threshold; the message has all figures.
    """
    if returns and (path := os.environ.get(MARGINS_VARIABLE)):
        line = io.StringIO()
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        figures = " ".join(f"{value:.4g}" for value in returns)
        csv.writer(line, lineterminator="\n").writerow([test, f"{threshold:g}", f"{min(returns):.4g}", figures])
        with open(path, "ab", buffering=0) as file:  # In one write: other workers append, too.
            file.write(line.getvalue().encode())
    figures = ", ".join(f"seed {seed}: {value:.3g}" for seed, value in zip(seeds, returns, strict=True))
    assert returns and all(value >= threshold for value in returns), (  # NaN is not, and min may pass it over.
        f"Expected an evaluation return of at least {threshold:g} from every seed after {after}, found {figures}."
    )
