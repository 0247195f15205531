"""Says how often and how long a run evaluates: as it was asked for, or in proportion to the run.

Time is never looked at: a run would differ from its repetition.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from agentkit.counting import count_of
from agentkit.experiment.config.run_config import RunConfig

MAX_EPISODES = 10
PART = 10
"""Evaluations in proportion take one step for so many of training."""

LEAST = 5
"""Evaluations in proportion of a run, at least, however long its episodes are: fewer points are no curve."""

_SHORTEST_LIMIT, LONGEST_LIMIT = 1_000, 100_000
"""An evaluation's episode may take as many steps as the run, within these: most of gymnasium's end by 1,000."""


class EvaluationPlan(NamedTuple):
    """Holds when a run evaluates.

    Attributes:
        period: steps between evaluations; 0 for none.
        episodes: of each evaluation, at most.
        in_proportion: whether all evaluations together may take about a tenth of the steps.
        max_steps: after which an evaluation's episode is cut off.
    """

    period: int
    episodes: int
    in_proportion: bool
    max_steps: int = LONGEST_LIMIT

    def describe(self, num_steps: int, unit: str = "step") -> str:
        """Returns a line for the user."""
        if not self.period:
            return "Evaluation: none"
        if self.period > num_steps:
            return (
                f"Evaluation: none, since the first one would come at {unit} {self.period:,} (--eval-every), after the "
                f"run's end at {num_steps:,}"
            )
        of_each = count_of(self.episodes, "episode")
        limit = f"An episode is cut off after {self.max_steps:,} steps (--eval-max-steps)."
        if not self.in_proportion:
            return f"Evaluation: {of_each} every {self.period:,} {unit}s. {limit}"
        in_all = f"about {num_steps // PART:,} environment steps in all, but {LEAST} evaluations at least"
        return f"Evaluation: up to {of_each} every {self.period:,} {unit}s, {in_all}. {limit}"


def warn_of_cut(num_cut: int, max_steps: int) -> None:
    """Warns of recorded episodes that `evaluation_max_steps` has cut off, if there are some."""
    if num_cut:
        which = "An episode was" if num_cut == 1 else f"{num_cut} episodes were"
        warnings.warn(
            f"{which} cut off after {max_steps:,} steps, as truncated. evaluation_max_steps (--max-steps) says when.",
            RuntimeWarning,
            stacklevel=3,
        )


def evaluation_plan(experiment: RunConfig) -> EvaluationPlan:
    """Returns an experiment's plan: in proportion where neither period nor episodes are given."""
    period, episodes = experiment.evaluation_period, experiment.evaluation_episodes
    limit = min(max(experiment.num_steps, _SHORTEST_LIMIT), LONGEST_LIMIT)
    return EvaluationPlan(
        max(experiment.num_steps // PART, 1) if period is None else period,
        MAX_EPISODES if episodes is None else episodes,
        period is None and episodes is None,
        limit if experiment.evaluation_max_steps is None else experiment.evaluation_max_steps,
    )


@final
@dataclasses.dataclass
class EvaluationBudget:
    """Counts the steps of evaluations, so that they stay in proportion.

    The first evaluation has one episode. The last one of a run has one at least, and so have those without
    which there would be fewer than `LEAST`, evenly spread; of the others, one whose steps would be more than a tenth of
    those trained so far is left out. Room for the last one is kept.

    Attributes:
        used: steps of the evaluations so far.
        length: the mean length of the newest one's episodes; 0 before the first.
        episodes: how many the newest one had; 0 where an older checkpoint does not say.
        number: of the evaluations so far.
    """

    used: float = 0.0
    length: float = 0.0
    number: int = 0
    episodes: int = 0

    def num_episodes(self, steps: int, is_last: bool, most: int) -> int:
        """Returns how many episodes an evaluation at a step of training has.

        It is known before the first one is played: if it depended on how long they turn out, a long episode would be
        followed by fewer others than a short one, and count for more in the mean. So it goes by the lengths of the
        evaluation before, and has at most twice as many episodes, which may have become longer.
        """
        if not self.length:
            return 1
        room = int(self._left(steps, is_last) / self.length)
        return min(max(room, 1), most, 2 * self.episodes if self.episodes else most)

    def _left(self, steps: int, is_last: bool) -> float:
        return steps / PART - self.used - (0.0 if is_last else self.length)

    def allows(self, steps: int, num_steps: int) -> bool:
        """Returns True if there is to be an evaluation at a step of a run of `num_steps`."""
        if steps >= num_steps or not self.used or self.number * num_steps < LEAST * steps:
            return True
        return self._left(steps, is_last=False) >= self.length

    def add(self, record: Mapping[str, float]) -> None:
        """Takes the record of an evaluation."""
        self.length, self.episodes = record["episode_length"], int(record["evaluation_episodes"])
        self.used += self.length * self.episodes
        self.number += 1

    def save(self) -> dict[str, float]:
        """Returns the state."""
        return dataclasses.asdict(self)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Takes the state back; a checkpoint of before there was one has none."""
        if state is not None:
            self.used, self.length = float(state["used"]), float(state["length"])
            self.number, self.episodes = int(state.get("number", 0)), int(state.get("episodes", 0))
