"""The loop of training in one process: work in steps, and evaluate, save and show progress in between.

`local` and `offline` build what a step works on; all else about a run is here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final

from agentkit import checkpoint
from agentkit.errors import AgentkitError, CheckpointError
from agentkit.experiment.checks.short_runs import no_update
from agentkit.experiment.config.evaluation_plan import EvaluationBudget, evaluation_plan
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.evaluation.training_films import TrainingFilms
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.policies.result import Result
from agentkit.experiment.runs.lock import RunFolder
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.own_learner import OwnLearner
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.learning import Learner
from agentkit.types import TableInfo

LONG_EPISODE = 5_000
"""Steps without the end of an episode, of one environment, that are worth a word."""

LONG_SECONDS = 20.0
"""Seconds of an evaluation that are worth a word."""


class LogRow(NamedTuple):
    """Holds what `agentkit.iterate` yields: a row of a run's logs.

    Attributes:
        log: which one: "train" (an episode), "learner", of several policies "learner-ID", or "evaluation".
        record: the row.
    """

    log: str
    record: dict[str, float]


class Work(Protocol):
    """Takes the steps of a run."""

    @property
    def num_steps(self) -> int:
        """Returns the steps so far, earlier runs of a resumed one included."""
        ...

    @property
    def num_episodes(self) -> int | None:
        """Returns the episodes that have ended so far; None where nobody acts, or has counted them."""
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

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        ...


class Judge(Protocol):
    """Evaluates the newest parameters; see `evaluation.evaluate.Evaluator`."""

    @property
    def num_cut(self) -> int:
        """Returns how many episodes of the newest evaluation the limit of steps has cut off."""
        ...

    def run(self, num_episodes: int, number: int, should_stop: Callable[[], bool] = ...) -> dict[str, float] | None:
        """Returns the record of evaluation `number`; None where it was asked to stop."""
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
        hooks: the callbacks.
        policies: for the result.
        rows: of the logs, where they are to be yielded: whoever writes them adds them here.
        result: how it ended; None so far.
        budget: of evaluations in proportion.
        told_of_evaluation: whether it was said that an evaluation goes on for long.
        evaluation_due: whether a signal ended an evaluation, which a resumed run then plays first.
        num_left_out: evaluations for which there was no room.
    """

    experiment: RunConfig
    work: Work
    learner: Learner | OwnLearner
    evaluator: Judge | None
    logs: RunLogs
    hooks: Hooks
    policies: Policies
    contents: Mapping[str, Callable[[pathlib.Path], None]] = dataclasses.field(default_factory=dict)
    unit: str = "step"
    saved_step: int = -1
    films: TrainingFilms | None = None
    timer: Timer | None = None
    evaluations: list[dict[str, float]] = dataclasses.field(default_factory=list)
    rows: collections.deque[LogRow] = dataclasses.field(default_factory=collections.deque)
    result: Result | None = None
    budget: EvaluationBudget = dataclasses.field(default_factory=EvaluationBudget)
    evaluation_due: bool = False
    told_of_evaluation: bool = False
    num_left_out: int = 0

    def __post_init__(self) -> None:
        """Notes which folder is the run's."""
        self._folder = RunFolder(self.experiment.run_directory)

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Takes back a checkpoint: of learner, callbacks, evaluations and work."""
        self.learner.restore(found.state["learner"])
        self.hooks.restore(found.state.get("callbacks", {}))
        self.work.restore(found.state)
        self.saved_step = found.step
        self.budget.restore(found.state.get("evaluation_budget"))
        self.evaluation_due = self.evaluator is not None and bool(found.state.get("evaluation_due", False))

    def train(self, stop: StopOnSignal) -> Result:
        """Trains to the end, or until a signal or a callback asks to stop; saves in either case."""
        for _ in self.iterate(stop):
            pass
        assert self.result is not None, "iterate sets it"
        return self.result

    def iterate(self, stop: StopOnSignal) -> Iterator[LogRow]:
        """Trains as `train` does, and yields the `rows` as they come; saves also where the iterator is closed."""
        rows = self.rows
        self.begin(stop)
        try:
            while self.goes_on and not stop.requested:
                self.advance(stop)
                while rows:
                    yield rows.popleft()
        except GeneratorExit:
            self.hooks.stopped_by = self.hooks.stopped_by or "its loop was left"
            self.finish()
            raise
        self.finish()
        while rows:
            yield rows.popleft()

    @property
    def goes_on(self) -> bool:
        """Returns whether there are steps left to take."""
        return self.work.num_steps < self.experiment.num_steps

    def begin(self, stop: StopOnSignal) -> None:
        """Plays the evaluation that a signal has ended, if it did, and finds out what is due when."""
        steps, was_due = self.work.num_steps, self.evaluation_due
        if was_due:
            self.evaluate(stop)
            if not self.evaluation_due:  # The end may be at this step, too, and then saves no more.
                self._save_or_warn()
        elif not self.goes_on:
            self.logs.message(f"Nothing to train: the run is at {self.unit} {steps:,} already.")
        self._next_evaluation = self._find_next_evaluation(steps)
        self._next_checkpoint = next_multiple(steps, self.experiment.checkpoint_period)
        self._next_film = next_multiple(steps, self.experiment.video_period)
        self._long_episode: float = min(LONG_EPISODE * (self.experiment.num_envs or 1), self.experiment.num_steps)

    def advance(self, stop: StopOnSignal) -> None:
        """Takes a step of the work, and does what is then due."""
        experiment = self.experiment
        self.work.step()
        steps = self.work.num_steps
        if steps >= self._next_evaluation:
            self.evaluate(stop)
            self._next_evaluation = self._find_next_evaluation(steps)
        if self.films is not None and steps >= self._next_film:
            self._folder.check()
            with self._time("evaluation"):
                self.films.film(steps)
            self._next_film = next_multiple(steps, experiment.video_period)
        if steps >= self._next_checkpoint:
            self._save_or_warn()
            self._next_checkpoint = next_multiple(steps, experiment.checkpoint_period)
        if steps >= self._long_episode:
            self._tell_of_long_episode(steps)
            self._long_episode = math.inf
        if self.logs.progress_due():
            self._show_progress()

    def finish(self) -> None:
        """Saves, and says how the run ended; raises what a callback has raised."""
        hooks, steps = self.hooks, self.work.num_steps
        stopped = steps < self.experiment.num_steps or self.evaluation_due
        if hooks.failure is None and (stopped or hooks.stopped_by):
            why = f": {hooks.stopped_by}" if hooks.stopped_by else ""
            self.logs.message(f"Stopping at {self.unit} {steps:,}{why}; saving.")
        try:
            self._folder.check()
            self.learner.log()
            if steps != self.saved_step:
                self.save()
        except AgentkitError as error:
            if hooks.failure is None:
                raise
            hooks.failure.add_note(f"The last checkpoint could not be written: {error}")
        if self.num_left_out > 1:
            self.logs.message(f"{self.num_left_out} evaluations were left out, for which there was no room.")
        if not self.learner.num_updates_done:
            self.logs.message(no_update(steps, self.unit))
        hooks.emit("on_end")
        self._show_progress()  # Due or not: the last line says where it ended.
        if hooks.failure is not None:
            raise hooks.failure
        self.result = Result(
            steps,
            self.learner.num_updates_done,
            self.evaluations,
            stopped and hooks.stopped_by is None,
            hooks.stopped_by,
            dataclasses.replace(self.policies, counts=(steps, self.learner.num_updates_done)),
        )

    def _tell_of_long_episode(self, steps: int) -> None:
        if self.work.num_episodes == 0:
            self.logs.message(
                f"{self.unit} {steps:,}: no episode has ended yet, so that no return is known. Where they never end, "
                "let the environment end them, or of one agent on the host --wrapper 'step_limit(max_steps=1000)'."
            )

    def _find_next_evaluation(self, steps: int) -> float:
        plan = evaluation_plan(self.experiment)
        due = next_multiple(steps, plan.period)
        return min(due, self.experiment.num_steps) if plan.in_proportion else due

    def evaluate(self, stop: StopOnSignal) -> None:
        """Evaluates the newest parameters, and logs the record; one in proportion may be left out.

        A signal ends it without a record, and leaves it due.
        """
        assert self.evaluator is not None, "without an evaluator no evaluation is due"
        steps, plan = self.work.num_steps, evaluation_plan(self.experiment)
        if plan.in_proportion and not self.budget.allows(steps, self.experiment.num_steps):
            self.evaluation_due = False  # A longer total than before may have no room for the one that was broken off.
            self.num_left_out += 1
            if self.num_left_out == 1:
                self.logs.message(
                    f"{self.unit} {steps:,}: no evaluation, as a tenth of the steps has no room for an episode of "
                    f"about {self.budget.length:,.0f} (--eval-every {plan.period} plays each). Others that have no "
                    "room are counted at the end."
                )
            return
        num_episodes = plan.episodes
        if plan.in_proportion:
            num_episodes = self.budget.num_episodes(steps, steps >= self.experiment.num_steps, plan.episodes)
        with self._time("evaluation"):
            found = self.evaluator.run(num_episodes, steps, self._asked_to_stop(stop, plan.max_steps))
            self.evaluation_due = found is None
            if found is None:
                return
            if plan.in_proportion:
                self.budget.add(found)
            record = {"steps": steps, "updates": self.learner.num_updates_done, **found}
            self._folder.check()  # Callbacks may write into it.
            self.hooks.emit("on_evaluation", record)
            self.evaluations.append(record)
            self.logs.evaluation.write(record)
            self.logs.message(f"{self.unit} {steps:,}: evaluation return {self._describe(found, plan.max_steps)}")

    def _asked_to_stop(self, stop: StopOnSignal, limit: int) -> Callable[[], bool]:
        """Returns what an evaluation asks before each step; the first one that goes on for long is said."""
        begun = time.monotonic()

        def asked() -> bool:
            if not self.told_of_evaluation and time.monotonic() - begun > LONG_SECONDS:
                self.told_of_evaluation = True
                self.logs.message(
                    f"{self.unit} {self.work.num_steps:,}: evaluating for over {LONG_SECONDS:g} s; an episode is cut "
                    f"off after {limit:,} steps (--eval-max-steps)"
                )
            return stop.signalled

        return asked

    def _describe(self, found: Mapping[str, float], limit: int) -> str:
        """Returns the mean return of an evaluation, of how many episodes it is, and which of them were cut off."""
        spread = "1 episode"
        if found["evaluation_episodes"] > 1:
            ends = f"{found['episode_return_min']:.1f} to {found['episode_return_max']:.1f}"
            spread = f"{ends}, {found['evaluation_episodes']:.0f} episodes"
        if num_cut := self.evaluator.num_cut if self.evaluator is not None else 0:
            which = "" if found["evaluation_episodes"] == 1 else f"{num_cut} of them "
            spread += f", {which}cut off after {limit:,} steps"
        return f"{found['episode_return']:.1f} ({spread})"

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
            RunFolderGoneError: the run folder is not there any more.
        """
        self._folder.check()
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
                "callbacks": self.hooks.save(),
                "evaluation_budget": self.budget.save(),
                "evaluation_due": self.evaluation_due,
                **self.work.save(),
            }
            directory = pathlib.Path(self.experiment.run_directory) / "checkpoints"
            path = checkpoint.write(
                directory, steps, state, self.contents, max_to_keep=self.experiment.keep_checkpoints
            )
            self.saved_step = steps
            self.hooks.emit("on_checkpoint", path)

    def _show_progress(self) -> None:
        self.logs.show_progress(self.work.num_steps, self.learner.num_updates_done, self.work.table())

    def _time(self, part: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.timer is None else self.timer.time(part)


def next_multiple(step: int, period: int) -> float:
    """Returns the least multiple of `period` above `step`; infinity where the period is 0."""
    return (step // period + 1) * period if period else float("inf")
