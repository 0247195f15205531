"""Runs one experiment with several seeds, each in a process and a run folder of its own, and shows one table.

The group's folder holds ``group.json`` and a run folder ``seed0``, ``seed1``, ... for each seed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from agentkit import checkpoint
from agentkit.callbacks.best import KeepBest
from agentkit.checkpoint import write_json
from agentkit.counting import count_of
from agentkit.errors import AgentkitError, ConfigError, says_what_was_meant
from agentkit.experiment.checks.short_runs import warnings_of
from agentkit.experiment.config import callback_record
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.multi_agent.config import MultiAgentConfig, multi_agent_from_record
from agentkit.experiment.multi_agent.parts import check_same_policies
from agentkit.experiment.runs.config_json import check_run_directory, damaged, experiment_from_record, read_record
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_installed
from agentkit.experiment.runs.resume_checks import check_num_envs, check_same_as
from agentkit.experiment.sweeps.jobs import (
    FAILED,
    FINISHED,
    OUTPUT_FILE,
    STOPPED,
    Job,
    JobProcesses,
    Outcome,
    is_finished,
    read_outcome,
    read_progress,
    share_of_threads,
    wait_a_little,
)
from agentkit.experiment.sweeps.together import JobsTogether, check_together
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.files import as_typed, read_json
from agentkit.loggers.live import Grid, RunsTable
from agentkit.loggers.progress import duration
from agentkit.scratch import make_scratch, remove_scratch

GROUP_FILE = "group.json"
_KEEP_BEST = f"{KeepBest.__module__}:{KeepBest.__qualname__}"
_COLUMNS = ("seed", "state", "steps", "return", "evaluation", "left")
_REFRESH_SECONDS = 0.5
_MAX_SEEDS = 10_000


class SeedResult(NamedTuple):
    """Holds how the run of one seed ended.

    Attributes:
        seed: its seed.
        state: "finished" (also where a callback has ended it), "stopped" (by a signal, and saved), "failed", or
            "waiting" if it has not begun.
        steps: environment steps in all.
        evaluations: the record of each evaluation (``steps``, ``episode_return``, ...).
        run_directory: its run folder; None where nothing is recorded.
        error: a line on why it failed; "" if it did not.
        stopped_by: the reason that a callback gave, where one has ended it before its last step; else "".
    """

    seed: int
    state: str
    steps: int
    evaluations: list[dict[str, float]]
    run_directory: pathlib.Path | None
    error: str = ""
    stopped_by: str = ""


@final
class RunsFailedError(AgentkitError, RuntimeError):
    """Says that some of several runs have failed; ``results`` has all."""

    def __init__(self, message: str, results: Sequence[Any]):
        super().__init__(message)
        self.results = list(results)


@says_what_was_meant
def run_seeds(
    experiment: ExperimentConfig | MultiAgentConfig,
    seeds: Iterable[int] = range(5),
    jobs: int = 1,
    *,
    resume: bool = False,
    check: bool = True,
) -> list[SeedResult]:
    """Runs an experiment once for each seed, `jobs` at a time, and returns how each ended.

    Each run has a process of its own, which ends with this one; those of one agent on the device
    (`experiment.on_device`) share one compiled program in this process. Each has the folder ``seed<N>`` in
    `experiment.run_directory`. With ``progress=True`` a table shows them. One that fails does not stop the others; one
    that a signal kills goes on once. SIGINT (Ctrl-C), SIGTERM or SIGHUP saves and stops all.

    Args:
        experiment: what to run; its own `seed` is not used. With no `run_directory`, only the results are kept.
        seeds: different whole numbers.
        jobs: processes at a time. Each gets its part of this machine's threads: see `jobs.share_of_threads`.
        resume: go on with those that have not finished, in the group folder; where the callbacks are others than
            before, also with those that one of them had stopped.
        check: raise where a run has failed.

    Raises:
        ConfigError: seeds or jobs are impossible; or the folder has a group in it and `resume` is False, or none, or
            one of runs that have taken more steps than these.
        CheckpointError: the group has other settings, or other callbacks that change the training.
        RunsFailedError: a run failed; its `results` are what is returned otherwise.
    """
    seeds = check_seeds(seeds)
    experiments = [dataclasses.replace(experiment, seed=seed) for seed in seeds]  # Refuses a seed that is none.
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ConfigError(f"jobs must be a whole number of at least 1, found {jobs!r}.")
    if _share_a_program(experiment):
        check_together(experiments, jobs)  # type: ignore[arg-type]  # They are of one agent.
    check_installed(experiment)
    if experiment.run_directory is None:
        if resume:
            raise ConfigError("To resume, an experiment needs the run_directory it was saved in.")
        scratch = make_scratch("seeds")
        try:
            results = _run_group(experiment, seeds, jobs, scratch, share_of_threads(jobs))
        finally:
            remove_scratch(scratch)
        results = [result._replace(run_directory=None) for result in results]
    else:
        folder = pathlib.Path(experiment.run_directory)
        with run_lock(folder):
            threads = _begin_group(experiment, folder, seeds, jobs, resume)
            results = _run_group(experiment, seeds, jobs, folder.absolute(), threads)
    failed = [result for result in results if result.state == FAILED]
    if failed and check:
        what = "; ".join(f"seed {result.seed}: {result.error}" for result in failed)
        raise RunsFailedError(f"{len(failed)} of {count_of(len(results), 'run')} failed. {what}", results)
    return results


def check_seeds(seeds: Any) -> list[int]:
    """Returns the seeds as a list, those of numpy's types as Python's, which JSON can hold.

    Raises:
        ConfigError: there are none, too many, or one twice; each run's config checks the rest.
    """
    if not isinstance(seeds, Iterable):
        advice = f" range({seeds}) is {seeds} of them." if isinstance(seeds, int) and seeds > 0 else ""
        raise ConfigError(f"seeds: expected a list of whole numbers, found {seeds!r:.80}.{advice}")
    seeds = [int(seed) if isinstance(seed, np.integer) else seed for seed in seeds]
    if not 1 <= len(seeds) <= _MAX_SEEDS or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds: expected 1 to {_MAX_SEEDS:,} different whole numbers, found {seeds!r:.80}.")
    return seeds


def read_group(
    directory: str | pathlib.Path, *, imports: Sequence[str] = (), **changes: Any
) -> tuple[ExperimentConfig | MultiAgentConfig, list[int], int]:
    """Returns the experiment, with its callbacks, the seeds and the number of jobs of a group's folder.

    Args:
        directory: the group folder.
        imports: see `config.read_config`.
        **changes: fields of the experiment to replace, such as a larger `num_steps`.

    Raises:
        ConfigError: there is no group there, or its experiment cannot be made again.
    """
    record = _read_record(pathlib.Path(directory))
    changes.setdefault("callbacks", callback_record.rebuild(record["experiment"], directory, imports))
    make = multi_agent_from_record if "policies" in record["experiment"] else experiment_from_record
    experiment: Any = make(record["experiment"], directory, imports=imports, file=GROUP_FILE, **changes)
    return experiment, record["seeds"], record["jobs"]


def is_group(directory: str | pathlib.Path) -> bool:
    """Returns True if a folder holds a group of seeds."""
    return (pathlib.Path(directory) / GROUP_FILE).is_file()


def _read_record(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / GROUP_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} has no group of seeds in it: there is no {GROUP_FILE}.")
    try:
        record: dict[str, Any] = read_json(path)
        for name, kind in (("seeds", list), ("jobs", int), ("experiment", dict)):
            if not isinstance(record.get(name), kind):
                raise ValueError(f"{name} is {record.get(name)!r:.60}, expected {kind.__name__}")
        if not all(type(seed) is int for seed in record["seeds"]):
            raise ValueError(f"seeds is {record['seeds']!r:.60}, expected whole numbers")
        if type(record.get("threads")) not in (int, type(None)):
            raise ValueError(f"threads is {record['threads']!r:.60}, expected int or null")
    except (ValueError, AttributeError) as error:
        raise damaged(path, error) from error
    return record


def _begin_group(
    experiment: ExperimentConfig | MultiAgentConfig,
    folder: pathlib.Path,
    seeds: Sequence[int],
    jobs: int,
    resume: bool,
) -> int | None:
    """Writes or reads ``group.json``; returns the threads of each run, which a resumed group keeps: see `jobs`."""
    if resume:
        record = _read_record(folder)
        if sorted(record["seeds"]) != sorted(seeds):
            raise ConfigError(f"{folder} has the seeds {record['seeds']}; this experiment has {list(seeds)}.")
        _check_total(experiment, folder, record)
        _check_same(experiment, folder, record["experiment"])
        seed = {name: value for name, value in record["experiment"].items() if name == "seed"}
        record |= {"jobs": jobs, "experiment": experiment.describe() | seed}  # What the next resume begins with.
        write_json(folder / GROUP_FILE, record)
        threads: int | None = record.get("threads")
        return threads
    check_run_directory(experiment, resume=False)
    if is_group(folder):
        raise ConfigError(f"{folder} has a group of seeds in it already. Resume it, or choose another run_directory.")
    threads = share_of_threads(jobs)
    record = {"seeds": list(seeds), "jobs": jobs, "threads": threads, "experiment": experiment.describe()}
    write_json(folder / GROUP_FILE, {**record, "command": list(sys.argv)})
    if experiment.progress:
        print(f"Group folder: {folder}", flush=True)
    return threads


def _check_total(experiment: ExperimentConfig | MultiAgentConfig, folder: pathlib.Path, record: dict[str, Any]) -> None:
    """Refuses a lower total than before that a run's checkpoint is past already; see `resume_checks.check_total`."""
    taken = max(max(checkpoint.steps(folder / f"seed{seed}" / "checkpoints"), default=0) for seed in record["seeds"])
    if experiment.num_steps < min(taken, record["experiment"].get("num_steps", 0)):
        raise ConfigError(
            f"A run of {folder} has {taken:,} steps already, and num_steps={experiment.num_steps:_} (--steps) is the "
            "total, those included. Give a larger one, or leave it out."
        )


def _check_same(experiment: ExperimentConfig | MultiAgentConfig, folder: pathlib.Path, saved: dict[str, Any]) -> None:
    """Refuses other settings than the group's, as each run would with its checkpoint; seeds are the runs' own."""
    ours = dataclasses.replace(experiment, seed=saved.get("seed", experiment.seed))
    if isinstance(ours, MultiAgentConfig):
        check_same_policies(ours, saved, folder)
    else:
        check_num_envs(ours, saved, f"The group {folder}")
    check_same_as(saved, ours, f"The group {folder}")


def _is_done(job: Job) -> bool:
    """Returns True if a run has taken all steps that are asked for, or the callbacks that it has now have ended it."""
    outcome = read_outcome(job.directory)
    if outcome is None or not is_finished(job) or not outcome.stopped_by:
        return is_finished(job)
    saved, now = read_record(job.directory)["callbacks"], callback_record.describe(job.experiment.callbacks)
    return callback_record.are_same(_may_stop(saved), _may_stop(now))


def _may_stop(entries: Any) -> list[callback_record.SavedCallback]:
    """Returns those of a record's callbacks that may end a run: all but the one that keeps the best policy."""
    return [each for each in callback_record.read(entries) if each.code.value != _KEEP_BEST]


def _run_group(
    experiment: ExperimentConfig | MultiAgentConfig,
    seeds: Sequence[int],
    num_jobs: int,
    folder: pathlib.Path,
    threads: int | None,
) -> list[SeedResult]:
    jobs = {
        seed: Job(
            f"seed {seed}",
            dataclasses.replace(experiment, seed=seed, run_directory=folder / f"seed{seed}", progress=False),
        )
        for seed in seeds
    }
    waiting = [job for job in jobs.values() if not _is_done(job)]
    together, done = _share_a_program(experiment), {job.name for job in jobs.values()} - {job.name for job in waiting}
    if together:  # All have a place, so that the program, and so each bit, is the same as before a resume.
        waiting, num_jobs = list(jobs.values()) if waiting else [], len(jobs)
    with (
        StopOnSignal() as stop,
        RunsTable(quiet=not experiment.progress) as table,
        JobsTogether(stop, done) if together else JobProcesses(threads) as processes,
    ):
        if isinstance(experiment, ExperimentConfig):  # To count several agents would take an environment.
            for line in warnings_of(experiment):
                table.message(line)
        view, ended = _View(jobs, table), dict[str, Outcome]()  # A full disk has no room for all outcomes.
        while (waiting and not stop.requested) or processes.running:
            if stop.requested:
                processes.stop_all()
            while waiting and not stop.requested and len(processes.running) < num_jobs:
                processes.start(waiting.pop(0))
            for job, outcome in processes.poll():
                ended[job.name] = outcome
                table.message(describe_end(job, outcome))
            view.show(processes.running)
            if not together:
                wait_a_little()
        view.show(processes.running, last=True)
    return [_result(seed, job, ended.get(job.name)) for seed, job in jobs.items()]


def _share_a_program(experiment: ExperimentConfig | MultiAgentConfig) -> bool:
    """Returns whether the runs are members of one compiled program; those of several agents are not."""
    return experiment.on_device and isinstance(experiment, ExperimentConfig)


def describe_end(job: Job, outcome: Outcome) -> str:
    """Returns a line on how a run ended."""
    progress = read_progress(job.directory)
    if outcome.state == FAILED:
        return f"{job.name} failed: {outcome.error} See {as_typed(job.directory / OUTPUT_FILE)}"
    evaluation = f", evaluation return {_last_return(progress.evaluations)}" if progress.evaluations else ""
    if outcome.state == STOPPED:
        return f"{job.name} stopped at step {progress.steps:,} and saved{evaluation}"
    if outcome.stopped_by:
        return f"{job.name} finished at step {progress.steps:,}: {outcome.stopped_by}"
    learned_nothing = bool(progress.evaluations) and progress.evaluations[-1].get("updates") == 0
    return f"{job.name} finished {progress.steps:,} steps{evaluation}{', without an update' if learned_nothing else ''}"


def _last_return(evaluations: list[dict[str, float]]) -> str:
    return f"{evaluations[-1]['episode_return']:.1f}" if evaluations else ""


def _result(seed: int, job: Job, ended: Outcome | None) -> SeedResult:
    progress = read_progress(job.directory)
    found = ended or read_outcome(job.directory) or Outcome("waiting", job.experiment.num_steps)
    return SeedResult(
        seed, found.state, progress.steps, progress.evaluations, job.directory, found.error, found.stopped_by
    )


@final
class _View:
    """Makes the table of a group: a row for each seed."""

    def __init__(self, jobs: dict[int, Job], table: RunsTable, clock: Callable[[], float] = time.monotonic):
        self._jobs = jobs
        self._table = table
        self._clock = clock
        self._shown_at = float("-inf")
        self._began: dict[str, tuple[float, int]] = {}  # When a run's first step here was seen, and which it was.

    def show(self, running: Sequence[str], last: bool = False) -> None:
        now = self._clock()
        if now - self._shown_at >= _REFRESH_SECONDS or last:
            self._shown_at = now
            self._table.write(Grid(_COLUMNS, [self._row(seed, job, running, now) for seed, job in self._jobs.items()]))

    def _row(self, seed: int, job: Job, running: Sequence[str], now: float) -> tuple[str, ...]:
        outcome, progress = read_outcome(job.directory), read_progress(job.directory)
        state = "running" if job.name in running else "waiting" if outcome is None else outcome.state
        total = job.experiment.num_steps
        left = ""
        if state == "running" and progress.steps:
            since, first = self._began.setdefault(job.name, (now, progress.steps))
            if progress.steps > first:
                left = duration((total - progress.steps) * (now - since) / (progress.steps - first))
        episode = "" if progress.episode_return is None else f"{progress.episode_return:.1f}"
        steps = f"{progress.steps:,}/{total:,}"
        return str(seed), state, steps, episode, _last_return(progress.evaluations), left


def all_finished(results: Sequence[SeedResult]) -> bool:
    """Returns True if every run has taken all its steps, or a callback has ended it."""
    return all(result.state == FINISHED for result in results)
