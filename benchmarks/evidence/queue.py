"""Does the runs of `evidence.toml` one after the other, on one core, and records what each reached."""

from __future__ import annotations

import csv
import functools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
from types import FrameType

import agentkit
from agentkit.child import die_with, environment_of_child
from agentkit.experiment.runs.lock import run_lock
from benchmarks.evidence.plan import RECORDS, ROOT, Record, Run, read_records, read_runs

AGENTKIT = [sys.executable, "-m", "agentkit.cli"]
NUM_DATA_EPISODES = 100


def missing(runs: list[Run], records: pathlib.Path = RECORDS) -> list[Run]:
    """Returns the runs without a record that says which commit made it."""
    found = read_records(records)
    return [run for run in runs if run.name not in found or found[run.name].commit is None]


class Queue:
    """Trains runs in processes of their own, in a folder outside of the repository.

    ``runs/NAME`` is a run's folder; beside it ``NAME.log`` has all that it printed, and ``NAME.parts.jsonl`` a line for
    each time that it was trained until it ended or was stopped.
    """

    def __init__(self, folder: pathlib.Path, runs: list[Run], records: pathlib.Path = RECORDS):
        """Makes the folder.

        Raises:
            SystemExit: agentkit is another copy than this repository's, whose commit the records would name.
        """
        if ROOT not in pathlib.Path(agentkit.__file__).resolve().parents:
            raise SystemExit(f"Expected agentkit of {ROOT}, found {agentkit.__file__}. Run this in {ROOT}.")
        self._runs, self._all, self._records = folder / "runs", runs, records
        self._runs.mkdir(parents=True, exist_ok=True)
        self._child: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT: lets the run save, which goes on at the next start, and then ends."""
        self.stopping = True
        # A terminal has sent Ctrl-C to the training, too, and a second one would stop it at once.
        if self._child is not None and number != signal.SIGINT:
            self._child.send_signal(signal.SIGTERM)

    def work(self) -> int:
        """Does what is missing, in order; returns how many runs failed, each of which is tried once."""
        failed = 0
        for run in missing(self._all, self._records):
            if self.stopping:
                break
            try:
                record = self._train(run)
            except (subprocess.CalledProcessError, ValueError) as error:
                failed += 1
                print(f"{run.name}: {error}; see {self._beside(run, '.log')}", flush=True)
                continue
            if record is not None:
                with open(self._records, "a") as file:
                    file.write(record.line())
                shutil.rmtree(self._runs / run.file_name / "checkpoints")  # With replay: they fill the disk.
                print(f"{run.name}: {record.evaluations[-1][1]} in {record.processor_hours} hours", flush=True)
        return failed

    def _beside(self, run: Run, suffix: str) -> pathlib.Path:
        return self._runs / f"{run.file_name}{suffix}"

    def _data(self, name: str) -> pathlib.Path:
        (source,) = (run for run in self._all if run.name == name)
        return self._beside(source, ".hdf5")

    def _train(self, run: Run) -> Record | None:
        """Begins or resumes a run; None if it was stopped before its end.

        Raises:
            CalledProcessError: a command failed.
            ValueError: the run ended early, or the data are not there that it learns from.
        """
        folder = self._runs / run.file_name
        data = None if run.data is None else self._data(run.data)
        if data is not None and not data.exists():
            raise ValueError(f"its data are of {run.data}, which has not ended")
        words = run.words(str(folder), str(data))
        if (folder / "config.json").exists():
            words = [words[0], "--resume", str(folder)]
        code, seconds = self._execute(run, words)
        with open(self._beside(run, ".parts.jsonl"), "a") as file:
            file.write(json.dumps({"commit": commit(), "processor_seconds": seconds}) + "\n")
        if self.stopping:
            return None
        if code != 0:
            raise subprocess.CalledProcessError(code, words)
        record = self._record(run, folder)
        if any(other.data == run.name for other in self._all):
            words = ["export", str(folder), "--episodes", str(NUM_DATA_EPISODES), "--explore"]
            file = self._beside(run, ".hdf5")
            if not file.exists() and self._execute(run, [*words, "--out", str(file)])[0] != 0:
                raise ValueError("its episodes could not be exported")
        return record

    def _execute(self, run: Run, words: list[str]) -> tuple[int, float]:
        """Runs a command of agentkit; returns its exit code, and the processor seconds it took."""
        before = _children_seconds()
        with open(self._beside(run, ".log"), "ab") as log:
            self._child = subprocess.Popen(
                [*AGENTKIT, *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment_of_child(),
                preexec_fn=functools.partial(die_with, os.getpid()),
            )
            if self.stopping:  # The signal came before there was a child to tell.
                self._child.terminate()
            code = self._child.wait()
        self._child = None
        return code, _children_seconds() - before

    def _record(self, run: Run, folder: pathlib.Path) -> Record:
        with open(folder / "logs" / "evaluation.csv", newline="") as file:
            rows = [(int(float(row["steps"])), float(row["episode_return"])) for row in csv.DictReader(file)]
        if rows[-1][0] < run.steps:
            raise ValueError(f"expected {run.steps:,} steps, found a last evaluation at {rows[-1][0]:,}")
        parts = [json.loads(line) for line in self._beside(run, ".parts.jsonl").read_text().splitlines()]
        return Record(
            run,
            evaluations=[[step, round(value, 2)] for step, value in rows],
            processor_hours=round(sum(part["processor_seconds"] for part in parts) / 3_600, 3),
            versions=json.loads((folder / "config.json").read_text())["versions"],
            commit="+".join(dict.fromkeys(part["commit"] for part in parts)),
        )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit() -> str:
    """Returns the repository's commit, with "-changed" where agentkit differs from it."""
    git = functools.partial(subprocess.run, cwd=ROOT, check=True, capture_output=True, text=True)
    changed = git(["git", "status", "--porcelain", "--", "agentkit"]).stdout
    return git(["git", "rev-parse", "--short=10", "HEAD"]).stdout.strip() + "-changed" * bool(changed)


def run(folder: pathlib.Path) -> int:
    """Does all that is missing at the lowest priority on one core; returns 1 if a run failed.

    Raises:
        LockedError: another queue is at work in the folder.
    """
    os.nice(19)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with run_lock(folder):
        queue = Queue(folder, read_runs())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, queue.stop)
        return int(queue.work() > 0)
