"""Runs a sweep: takes trials, runs their seeds in processes, gives up the poor ones, and keeps the results."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, final

from agentkit.callbacks.base import check_evaluates_before_its_end
from agentkit.errors import AgentkitError, ConfigError, unknown_name
from agentkit.experiment.checks.short_runs import warnings_of
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.multi_agent.judging.evaluation import RETURN_OF
from agentkit.experiment.sweeps.jobs import FAILED as JOB_FAILED
from agentkit.experiment.sweeps.jobs import (
    OUTPUT_FILE,
    Job,
    JobProcesses,
    Outcome,
    is_finished,
    read_evaluations,
    share_of_threads,
    wait_a_little,
)
from agentkit.experiment.sweeps.metrics import has_taken_all, metric_of, reports
from agentkit.experiment.sweeps.plan import SweepPlan
from agentkit.experiment.sweeps.together import JobsTogether, check_together
from agentkit.experiment.sweeps.trials import (
    BEGUN,
    COMPLETE,
    FAILED,
    PRUNED,
    ListSuggester,
    Suggester,
    SweepFolder,
    TrialRecord,
    judged,
)
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.files import write_new

RESULTS_FILE = "results.csv"
_REFRESH_SECONDS = 0.5
MAX_FAILURES = 3
"""After so many failed trials, and none that has not, the sweep ends: the others would fail, too."""


class SweepResult(NamedTuple):
    """Holds how a sweep stands.

    Attributes:
        trials: those that have begun, by number.
        num_trials: how many there are to be.
        interrupted: True if a signal stopped it.
    """

    trials: list[TrialRecord]
    num_trials: int
    interrupted: bool

    @property
    def best(self) -> TrialRecord | None:
        """Returns the complete trial of the greatest value, the first one of several; None if there is none."""
        return best_of(self.trials)

    @property
    def ended(self) -> bool:
        """Returns True if every trial has ended, well or not."""
        return len(self.trials) >= self.num_trials and all(record.state != BEGUN for record in self.trials)


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Returns the complete trial of the greatest value, the first one of several; None if there is none."""
    complete = [record for record in map(judged, trials) if record.state == COMPLETE and record.value is not None]
    return max(complete, key=lambda record: (record.value, -record.number), default=None)


class Watcher(Protocol):
    """Takes what happens in a sweep."""

    def message(self, text: str) -> None:
        """Takes a line on what has happened."""
        ...

    def show(self, trials: Sequence[TrialRecord], running: Sequence[int]) -> None:
        """Takes the trials so far, and the numbers of those that run here."""
        ...


@final
class Silence:
    """Says nothing: a `Watcher`."""

    def message(self, text: str) -> None:
        """Drops the line."""

    def show(self, trials: Sequence[TrialRecord], running: Sequence[int]) -> None:
        """Drops the trials."""


def run_sweep(
    plan: SweepPlan, directory: str | pathlib.Path, jobs: int = 1, watcher: Watcher | None = None
) -> SweepResult:
    """Runs a sweep, or goes on with it: trials that have ended stay as they are, those under way are resumed.

    Several processes may run the same sweep in one folder, on several machines that share it.

    Args:
        plan: what to try.
        directory: where each trial has a folder, and each of its seeds a run folder.
        jobs: runs at a time.
        watcher: is told what happens.

    Raises:
        ConfigError: another sweep is in the folder, the first trials have all failed, or trials cannot share a program;
            or their runs end before there is an evaluation to judge by.
        MissingExtraError: the method is "tpe" and Optuna is not installed.
    """
    _check_evaluates(plan)
    if plan.on_device:
        check_on_device(plan, jobs)
    folder = SweepFolder(pathlib.Path(directory).absolute())
    suggester = make_suggester(plan, folder)
    threads = share_of_threads(jobs)
    with (
        StopOnSignal() as stop,
        JobsTogether(stop) if plan.on_device else JobProcesses(threads) as processes,
        contextlib.ExitStack() as stack,
    ):
        sweep = _Sweep(plan, folder, suggester, processes, watcher or Silence(), stack)
        sweep.run(plan.total() * len(plan.seeds) if plan.on_device else jobs, lambda: stop.requested)
        interrupted = stop.requested
    records = folder.records()
    write_results(folder, records)
    return SweepResult(records, plan.total(), interrupted)


_TRIED_TRIALS = 100


def _check_evaluates(plan: SweepPlan) -> None:
    """Refuses, before there is a folder, a sweep in which no run is evaluated; of some runs, their trials say so."""
    refusals = []
    ends = [plan.first_values(), plan.last_values()]
    tried = ends if plan.method == "tpe" else plan.trials()[:_TRIED_TRIALS]
    for values in tried:
        try:
            experiment = plan.make_experiment(values)
        except AgentkitError:  # They are impossible together.
            return
        try:
            check_evaluates_before_its_end(experiment, "run_sweep")
        except ConfigError as error:
            refusals.append(error)
    if len(refusals) == len(tried):
        raise refusals[0]


def check_on_device(plan: SweepPlan, jobs: int) -> None:
    """Refuses runs that cannot train together on the device; all are looked at, before there is a folder.

    Trials whose settings are impossible together do not run at all, there as elsewhere.
    """
    trials, impossible = [], None
    for parameters in plan.trials():
        try:
            trials.append(plan.make_experiment(parameters))
        except AgentkitError as error:
            impossible = error
    if impossible is not None and not trials:
        raise impossible
    of_one_agent = [experiment for experiment in trials if isinstance(experiment, ExperimentConfig)]
    if len(of_one_agent) < len(trials):
        raise ConfigError("on_device: runs of several agents have a program each. Leave it out of the SweepPlan.")
    runs = [dataclasses.replace(experiment, seed=seed) for experiment in of_one_agent for seed in plan.seeds]
    check_together(runs, jobs)


def make_suggester(plan: SweepPlan, folder: SweepFolder) -> Suggester:
    """Begins the sweep's folder, and returns what proposes its trials, told of all that have ended.

    Raises:
        MissingExtraError: the method is "tpe" and Optuna is not installed; no folder is made.
    """
    if plan.method != "tpe":
        folder.begin(plan)
        return ListSuggester(plan)
    from agentkit.experiment.sweeps.optuna_study import OptunaSuggester

    folder.begin(plan)
    with folder.turn():
        suggester = OptunaSuggester(plan, folder.path)
        for record in folder.records():  # A kill between a trial's end and its telling.
            if record.state != BEGUN:
                suggester.tell(record)
    return suggester


@dataclasses.dataclass
class _Trial:
    """A trial that this process works on."""

    record: TrialRecord
    jobs: list[Job]
    waiting: list[Job]
    lock: contextlib.ExitStack
    pruned_by: float | None = None
    error: str = ""
    reported: int = -1


@final
class _Sweep:
    def __init__(
        self,
        plan: SweepPlan,
        folder: SweepFolder,
        suggester: Suggester,
        processes: JobProcesses | JobsTogether,
        watcher: Watcher,
        stack: contextlib.ExitStack,
    ):
        self._plan = plan
        self._folder = folder
        self._suggester = suggester
        self._processes = processes
        self._watcher = watcher
        self._stack = stack
        self._total = plan.total()
        self._active: dict[int, _Trial] = {}
        self._said: set[str] = set()

    def run(self, num_jobs: int, should_stop: Callable[[], bool]) -> None:
        """Works until there is no trial left to take, or until it is to stop; then all are saved."""
        next_show = 0.0
        while True:
            if should_stop():
                self._processes.stop_all()
            else:
                self._start(num_jobs)
            if not self._active or (should_stop() and not self._processes.running):
                break
            for job, outcome in self._processes.poll():
                self._note(job, outcome)
            for trial in list(self._active.values()):
                self._prune(trial)
                self._end(trial, should_stop())
            if time.monotonic() >= next_show:
                next_show = time.monotonic() + _REFRESH_SECONDS
                self._watcher.show(self._folder.records(), sorted(self._active))
            if not isinstance(self._processes, JobsTogether):
                wait_a_little()
        self._watcher.show(self._folder.records(), [])

    def _start(self, num_jobs: int) -> None:
        """Starts runs of the trials at hand, and then of others, until `num_jobs` run."""
        while len(self._processes.running) < num_jobs:
            trial = next((trial for trial in self._active.values() if trial.waiting), None) or self._take()
            if trial is None:
                return
            if trial.waiting:
                self._processes.start(trial.waiting.pop(0))
            else:  # All of its runs had finished, and a kill came before that was written.
                self._end(trial, False)

    def _take(self) -> _Trial | None:
        lock = self._stack.enter_context(contextlib.ExitStack())
        record = self._folder.take(self._suggester, self._total, lock)
        if record is None:
            return None
        try:
            experiment = self._plan.make_experiment(record.parameters)
            check_evaluates_before_its_end(experiment, "run_sweep")  # The period or the steps may be what is searched.
        except AgentkitError as error:  # Each value was in its range; together they are impossible.
            trial = _Trial(record, [], [], lock, error=" ".join(str(error).split()))
            self._active[record.number] = trial
            return trial
        self._tell_of_short_runs(record.number, experiment)
        path = self._folder.trial_path(record.number)
        jobs = [
            Job(
                f"trial {record.number} seed {seed}",
                dataclasses.replace(experiment, seed=seed, run_directory=path / f"seed{seed}", progress=False),
            )
            for seed in self._plan.seeds
        ]
        trial = _Trial(record, jobs, [job for job in jobs if not is_finished(job)], lock)
        self._active[record.number] = trial
        return trial

    def _tell_of_short_runs(self, number: int, experiment: ExperimentConfig | MultiAgentConfig) -> None:
        """Says what will not happen in a trial's runs, since they are short; once where it is the same in others."""
        if not isinstance(experiment, ExperimentConfig):  # To count the agents would take an environment.
            return
        new = [line for line in warnings_of(experiment) if line not in self._said]
        self._said.update(new)
        for line in new:
            self._watcher.message(f"trial {number}: {line}")

    def _note(self, job: Job, outcome: Outcome) -> None:
        trial = next(trial for trial in self._active.values() if job in trial.jobs)
        if outcome.state == JOB_FAILED:
            trial.error = trial.error or f"{job.name.partition(' seed ')[2]}: {outcome.error}"
            self._give_up(trial)

    def _give_up(self, trial: _Trial) -> None:
        trial.waiting.clear()
        for job in trial.jobs:
            self._processes.stop(job.name)

    def _prune(self, trial: _Trial) -> None:
        """Reports new evaluations; gives the trial up where they are poor, unless it has no step left to save."""
        if trial.error or trial.pruned_by is not None:
            return
        evaluations = self._evaluations(trial)
        finished = [is_finished(job) for job in trial.jobs]
        experiment = trial.jobs[0].experiment
        found = reports(evaluations, finished, experiment.num_steps, evaluation_plan(experiment).period)
        is_whole = has_taken_all(evaluations, finished, experiment.num_steps)
        for step, value in found:
            if step <= trial.reported:
                continue
            trial.reported = step
            if self._suggester.report(trial.record.number, step, value) and not is_whole:
                _, trial.pruned_by = found[-1]  # A resumed sweep reports all again, and it is the newest that is poor.
                self._give_up(trial)
                return

    def _evaluations(self, trial: _Trial) -> list[list[dict[str, float]]]:
        """Returns each seed's evaluations, whose ``episode_return`` is what the sweep judges by."""
        records = [read_evaluations(job.directory) for job in trial.jobs]
        if (agent := self._plan.return_of) is None:
            return records
        for record in itertools.chain(*records):
            name = f"{RETURN_OF}{agent}"
            if name not in record:
                agents = [each.removeprefix(RETURN_OF) for each in record if each.startswith(RETURN_OF)]
                raise unknown_name("agent in return_of", agent, agents)
            record["episode_return"] = record[name]
        return records

    def _end(self, trial: _Trial, stopping: bool) -> None:
        """Writes how a trial ended, if it has."""
        if (trial.waiting and not stopping) or any(job.name in self._processes.running for job in trial.jobs):
            return
        record, number = trial.record, trial.record.number
        if trial.error:
            record = dataclasses.replace(record, state=FAILED, error=trial.error)
        elif trial.pruned_by is not None:
            record = judged(dataclasses.replace(record, state=PRUNED, value=trial.pruned_by))
            self._watcher.message(f"trial {number} given up at return {trial.pruned_by:.1f}")
        elif all(is_finished(job) for job in trial.jobs):
            num_steps, period = trial.jobs[0].experiment.num_steps, evaluation_plan(trial.jobs[0].experiment).period
            value = metric_of(self._evaluations(trial), self._plan.metric, num_steps, period)
            record = judged(dataclasses.replace(record, state=COMPLETE, value=value))
        if record.state == COMPLETE:
            self._watcher.message(f"trial {number} finished with {self._plan.metric} return {record.value:.1f}")
        elif record.state == FAILED:
            advice = f" See {self._folder.trial_path(number)}/seed*/{OUTPUT_FILE}" if trial.jobs else ""
            self._watcher.message(f"trial {number} failed: {record.error}{advice}")
        if record.state != BEGUN:
            self._folder.write(record)  # First: what is in the folder counts, and the study is told again.
            self._suggester.tell(record)
        trial.lock.close()
        del self._active[number]
        self._check_failures()

    def _check_failures(self) -> None:
        states = [record.state for record in self._folder.records()]
        if self._plan.on_device and (len(states) < self._plan.total() or BEGUN in states):
            return  # All train at once, and those that are impossible end before any other.
        if states.count(FAILED) >= MAX_FAILURES and not {COMPLETE, PRUNED} & set(states):
            errors = [record.error for record in self._folder.records() if record.state == FAILED]
            raise ConfigError(
                f"The first {states.count(FAILED)} trials have all failed, the last with: {errors[-1]} Mend it, move "
                f"{self._folder.path} away and start again."
            )


def write_results(folder: SweepFolder, records: Sequence[TrialRecord]) -> None:
    """Writes ``results.csv``: a row for each trial, with its settings."""
    names = list(dict.fromkeys(name for record in records for name in record.parameters))
    temporary = folder.path / f"{RESULTS_FILE}.{os.getpid()}.tmp"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "value", *names])
    for record in records:
        value = "" if record.value is None else record.value
        writer.writerow([record.number, record.state, value, *(record.parameters.get(name) for name in names)])
    write_new(temporary, text.getvalue())
    os.replace(temporary, folder.path / RESULTS_FILE)
