"""The loop of training in one process: work in steps, and evaluate, save and show progress in between.

`local` and `offline` build what a step works on; all else about a run is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, final

from agentkit import checkpoint
from agentkit.errors import CheckpointError
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.evaluate import Evaluator
from agentkit.experiment.films import TrainingFilms
from agentkit.experiment.logs import RunLogs
from agentkit.experiment.signals import StopOnSignal
from agentkit.learning import Learner
from agentkit.types import TableInfo


class Result(NamedTuple):
    """Holds how a run ended.

    Attributes:
        steps: environment steps in all, earlier runs of a resumed one included; updates, of a run from data alone.
        updates: learner updates in all.
        evaluations: the record of each evaluation of this run (``steps``, ``episode_return``, ...).
        interrupted: True if a signal stopped it before `num_steps`.
    """

    steps: int
    updates: int
    evaluations: list[dict[str, float]]
    interrupted: bool


class Work(Protocol):
    """Takes the steps of a run."""

    @property
    def num_steps(self) -> int:
        """Returns the steps so far, earlier runs of a resumed one included."""
        ...

    def step(self) -> None:
        """Takes the next step, or several at once."""
        ...

    def table(self) -> TableInfo:
        """Returns the counters of the table that the learner draws from, for the progress line."""
        ...

    def save(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, but for the learner's."""
        ...


class Timer(Protocol):
    """Measures the parts of a run; see `profile.Timer`."""

    def time(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Counts the code inside as one call of `part`."""
        ...


@final
@dataclasses.dataclass
class Training:
    """Trains by the steps of some work until `experiment.num_steps`; evaluates, saves and shows progress on the way.

    Attributes:
        experiment: periods, run folder, number of steps.
        work: takes the steps.
        learner: updates on the data of the work; saved here.
        evaluator: None to evaluate never.
        logs: of the run.
        contents: writers of the files that a checkpoint holds besides its state, by name.
        unit: what a step is called in messages.
        saved_step: the step of the newest checkpoint.
        films: takes the pictures that `experiment.video_period` asks for; None for none.
        timer: measures evaluations and checkpoints; None measures nothing.
        evaluations: the records so far.
    """

    experiment: ExperimentConfig
    work: Work
    learner: Learner
    evaluator: Evaluator | None
    logs: RunLogs
    contents: Mapping[str, Callable[[pathlib.Path], None]] = dataclasses.field(default_factory=dict)
    unit: str = "step"
    saved_step: int = -1
    films: TrainingFilms | None = None
    timer: Timer | None = None
    evaluations: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def train(self, stop: StopOnSignal) -> Result:
        """Trains to the end, or until a signal asks to stop; saves in either case."""
        experiment, work = self.experiment, self.work
        next_evaluation = next_multiple(work.num_steps, experiment.evaluation_period)
        next_checkpoint = next_multiple(work.num_steps, experiment.checkpoint_period)
        next_film = next_multiple(work.num_steps, experiment.video_period)
        while work.num_steps < experiment.num_steps and not stop.requested:
            work.step()
            steps = work.num_steps
            if steps >= next_evaluation:
                self.evaluate()
                next_evaluation = next_multiple(steps, experiment.evaluation_period)
            if self.films is not None and steps >= next_film:
                with self._time("evaluation"):
                    self.films.film(steps)
                next_film = next_multiple(steps, experiment.video_period)
            if steps >= next_checkpoint:
                self._save_or_warn()
                next_checkpoint = next_multiple(steps, experiment.checkpoint_period)
            if self.logs.progress_due():
                self._show_progress()
        steps = work.num_steps
        interrupted = steps < experiment.num_steps
        if steps != self.saved_step:
            self.save()
        self._show_progress()  # Due or not: the last line says where it ended.
        if interrupted:
            self.logs.message(f"Stopped by a signal at {self.unit} {steps:,}; saved. Use --resume to go on.")
        return Result(steps, self.learner.num_updates_done, self.evaluations, interrupted)

    def evaluate(self) -> None:
        """Evaluates the newest parameters, and logs the record."""
        assert self.evaluator is not None, "without an evaluator no evaluation is due"
        steps, num_episodes = self.work.num_steps, self.experiment.evaluation_episodes
        with self._time("evaluation"):
            found = self.evaluator.run(num_episodes, number=steps)
            record = {"steps": steps, "updates": self.learner.num_updates_done, **found}
            self.evaluations.append(record)
            self.logs.evaluation.write(record)
            self.logs.message(
                f"{self.unit} {steps:,}: evaluation return {record['episode_return']:.1f} "
                f"({record['episode_return_min']:.1f} to {record['episode_return_max']:.1f}, {num_episodes} episodes)"
            )

    def _save_or_warn(self) -> None:
        """Saves; where the disk refuses, which may pass, training goes on, and the next period tries again."""
        try:
            self.save()
        except CheckpointError as error:
            warnings.warn(f"{error} Training goes on without it.", checkpoint.CheckpointWarning, stacklevel=2)

    def save(self) -> None:
        """Writes a checkpoint, where there is a run folder.

        Raises:
            CheckpointError: it could not be written; older ones are whole.
        """
        with self._time("saving"):
            steps = self.work.num_steps
            self.learner.check_finite()  # Without a folder, too: no run ends well that is not.
            if self.experiment.run_directory is None:
                self.saved_step = steps
                return
            state: dict[str, Any] = {
                "experiment": self.experiment.describe(),
                "learner": self.learner.save(),
                "num_steps": steps,
                **self.work.save(),
            }
            directory = pathlib.Path(self.experiment.run_directory) / "checkpoints"
            checkpoint.write(directory, steps, state, self.contents)
            self.saved_step = steps

    def _show_progress(self) -> None:
        self.logs.show_progress(self.work.num_steps, self.learner.num_updates_done, self.work.table())

    def _time(self, part: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.timer is None else self.timer.time(part)


def next_multiple(step: int, period: int) -> float:
    """Returns the least multiple of `period` above `step`; infinity where the period is 0."""
    return (step // period + 1) * period if period else float("inf")
