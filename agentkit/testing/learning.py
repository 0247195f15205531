"""Checks that an agent learns: short trainings that must reach a return, for several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentkit.agents.common.agent import Agent
from agentkit.experiment import ExperimentConfig, run


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
    figures = ", ".join(f"seed {seed}: {value:.3g}" for seed, value in zip(seeds, returns, strict=True))
    assert returns and min(returns) >= threshold, (
        f"Expected an evaluation return of at least {threshold:g} from every seed after {num_steps:,} steps, "
        f"found {figures}."
    )
    return returns
