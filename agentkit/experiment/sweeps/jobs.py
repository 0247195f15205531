"""Runs experiments in processes of their own, several at a time: seeds of one experiment, trials of a sweep.

All that is known of a run is in its folder: its logs say how far it is, its checkpoints where it goes on, and
``outcome.json`` how it ended. So it does not matter which process started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from typing import Any, NamedTuple, Self, final

import cloudpickle

from agentkit import loggers
from agentkit.checkpoint import write_json
from agentkit.distributed.guard import Guard
from agentkit.distributed.processes import RunningProcess, start_process
from agentkit.errors import ConfigError
from agentkit.experiment.training.devices import num_cores
from agentkit.files import open_to_append, open_to_read, read_json

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
OUTPUT_FILE = "output.log"
MAX_RESTARTS = 1
"""How often a run goes on that a signal has killed: what runs out of memory twice would do so again."""

_CHILD = "from agentkit.experiment.sweeps import job_process; job_process.main()"
_OUTCOME_FILE = "outcome.json"
_TAIL_BYTES = 8192
_NUM_RETURNS = 10


class Job(NamedTuple):
    """Names a run that is to be made, or to go on.

    Attributes:
        name: as messages have it: "seed 3".
        experiment: an `ExperimentConfig` or a `MultiAgentConfig`, with a run folder.
    """

    name: str
    experiment: Any

    @property
    def directory(self) -> pathlib.Path:
        """Returns the run folder."""
        return pathlib.Path(str(self.experiment.run_directory))


class Outcome(NamedTuple):
    """Says how a run ended.

    Attributes:
        state: `FINISHED`, `STOPPED` (by a signal, saved) or `FAILED`.
        num_steps: what it was asked for.
        error: a line on why it failed; "" if it did not.
        steps: what it has taken in all; None of one that failed or had not begun.
        stopped_by: the reason that a callback gave, where one has ended it before `num_steps`; else "".
    """

    state: str
    num_steps: int
    error: str = ""
    steps: int | None = None
    stopped_by: str = ""


class JobProgress(NamedTuple):
    """Says how far a run is, by its logs.

    Attributes:
        steps: environment steps.
        episode_return: the mean of the last ten training episodes, of the environment's own rewards; None before the
            first.
        evaluations: the records so far.
    """

    steps: int
    episode_return: float | None
    evaluations: list[dict[str, float]]


def write_outcome(directory: pathlib.Path, outcome: Outcome) -> None:
    """Writes a run's ``outcome.json``, whole or not at all."""
    write_json(directory / _OUTCOME_FILE, outcome._asdict())


def forget_outcome(directory: pathlib.Path) -> None:
    """Deletes how a run ended before: it goes on now."""
    (directory / _OUTCOME_FILE).unlink(missing_ok=True)


def read_outcome(directory: pathlib.Path) -> Outcome | None:
    """Returns how the run in a folder ended; None if it has not."""
    try:
        return Outcome(**read_json(directory / _OUTCOME_FILE))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{directory / _OUTCOME_FILE} is damaged: {error}. Delete it; the run then goes on."
        ) from error


def is_finished(job: Job) -> bool:
    """Returns True if the run has taken all steps that are asked for now, or a callback has ended it before that."""
    found = read_outcome(job.directory)
    return found is not None and found.state == FINISHED and found.num_steps >= job.experiment.num_steps


def read_progress(directory: pathlib.Path) -> JobProgress:
    """Returns how far the run in a folder is; a run that has not begun is at step 0."""
    evaluations = read_evaluations(directory)
    last = _last_rows(directory / "logs" / "train.csv", _NUM_RETURNS)
    steps = [int(float(row["steps"])) for row in last[-1:]]
    steps += [int(record["steps"]) for record in evaluations[-1:]]
    outcome = read_outcome(directory)
    if outcome is not None and outcome.state == FINISHED:
        steps.append(outcome.num_steps if outcome.steps is None else outcome.steps)  # Older runs have none.
    returns = [float(row.get("episode_raw_return") or row["episode_return"]) for row in last]
    return JobProgress(max(steps, default=0), sum(returns) / len(returns) if returns else None, evaluations)


def read_evaluations(directory: pathlib.Path) -> list[dict[str, float]]:
    """Returns the evaluation records of the run in a folder, those before a resume included."""
    path = directory / "logs" / "evaluation.csv"
    if not path.is_file():
        return []
    rows = loggers.read_csv(path)[1]
    return [{name: float(text) for name, text in row.items() if text} for row in rows]


def _last_rows(path: pathlib.Path, num_rows: int) -> list[dict[str, str]]:
    """Returns the last episodes' rows of a log that may be long, without reading all of it."""
    try:
        with open_to_read(path) as file:
            columns = file.readline().decode().strip().split(",")
            rows_begin = file.tell()
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, rows_begin))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    cells = [line.split(",") for line in lines]  # Numbers alone; the first line may be cut short.
    rows = [dict(zip(columns, row, strict=True)) for row in cells if len(row) == len(columns)]
    return [row for row in rows if row.get("steps") and row.get("episode_return")][-num_rows:]


@dataclasses.dataclass
class _Running:
    job: Job
    process: RunningProcess
    stopping: bool = False


@final
class JobProcesses:
    """Starts, watches and stops the processes of jobs; those end with this process. A context manager.

    With ``num_jobs`` at a time, each has that part of this machine's threads (see `share_of_threads`).

    Args:
        threads: of XLA and of numpy, in each process; None leaves it to them.
    """

    def __init__(self, threads: int | None = None):
        self._threads = threads
        self._guard = Guard(os.getpid())
        self._running: dict[str, _Running] = {}
        self._restarts: dict[str, int] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """Returns the names of the jobs whose processes run."""
        return tuple(self._running)

    def start(self, job: Job) -> None:
        """Starts a run, or goes on with it; what it prints goes to ``output.log`` in its folder."""
        job.directory.mkdir(parents=True, exist_ok=True)
        forget_outcome(job.directory)
        names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        shares = {} if self._threads is None else dict.fromkeys(names, str(self._threads))
        with open_to_append(job.directory / OUTPUT_FILE) as log:
            process = start_process(
                _CHILD, cloudpickle.dumps(job), self._guard, log, {**shares, "PYTHONFAULTHANDLER": "1"}
            )
        self._running[job.name] = _Running(job, process)

    def poll(self) -> list[tuple[Job, Outcome]]:
        """Returns the jobs that have ended since the last call, each with its outcome.

        One that a signal has killed, and that nobody here has stopped, goes on from its last checkpoint first.
        """
        ended = []
        for name, running in list(self._running.items()):
            if (code := running.process.poll()) is None:
                continue
            del self._running[name]
            job = running.job
            restarts = self._restarts.get(name, 0)
            if code < 0 and not running.stopping and restarts < MAX_RESTARTS:
                self._restarts[name] = restarts + 1
                self.start(job)
                continue
            ended.append((job, self._outcome(running, code)))
        return ended

    def _outcome(self, running: _Running, code: int) -> Outcome:
        found = read_outcome(running.job.directory)
        if found is not None:
            return found
        num_steps = running.job.experiment.num_steps
        if running.stopping:  # Before it had begun.
            return Outcome(STOPPED, num_steps)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        outcome = Outcome(FAILED, num_steps, f"its process {how}")
        with contextlib.suppress(OSError):  # A full disk, of which it died, ends no other job.
            write_outcome(running.job.directory, outcome)
        return outcome

    def stop(self, name: str) -> None:
        """Asks a job to save and stop. May be called again, and for one that has ended."""
        if name in self._running and not self._running[name].stopping:
            self._running[name].stopping = True
            self._running[name].process.terminate()

    def stop_all(self) -> None:
        """Asks every job to save and stop."""
        for name in self.running:
            self.stop(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for running in self._running.values():
            with contextlib.suppress(OSError):
                running.process.kill()
        self._running.clear()
        self._guard.close()


def share_of_threads(num_jobs: int) -> int | None:
    """Returns the threads that each of `num_jobs` processes gets; None where there is only one.

    Processes that each have a thread for every core wait for each other's. Measured on two cores, two SACs of 256x256
    units: 8 to 12 % less processor time with one thread each. Sums are then split differently: the last bits
    of a run depend on its number of threads.
    """
    if num_jobs == 1:
        return None
    return max(num_cores() // num_jobs, 1)


def wait_a_little() -> None:
    """Sleeps until it is worth asking again."""
    time.sleep(0.1)
