"""Does the runs of `evidence.toml` one after the other, on one core, and records what each reached."""

from __future__ import annotations

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
from agentkit.loggers.csv import read_csv
from agentkit.loggers.jsonl import read_jsonl
from benchmarks.evidence.plan import RECORDS, ROOT, Record, Run, append, read_records, read_runs

AGENTKIT = [sys.executable, "-m", "agentkit.cli"]
NUM_DATA_EPISODES = 100


def missing(runs: list[Run], records: pathlib.Path = RECORDS) -> list[Run]:
    """Returns the runs without a record that says which commit made it."""
    found = read_records(records)
    return [run for run in runs if run.name not in found or found[run.name].commit is None]


class Queue:
    """Trains runs in processes of their own, in a folder outside of the repository.

    ``runs/NAME`` is a run's folder; beside it ``NAME.log`` has all that it printed, and ``NAME.parts.jsonl`` a line for
    each time that it was begun or resumed, with commit and options, and another for its end, with processor seconds.
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
        """Handles SIGTERM, SIGINT and SIGHUP: lets the run save, which goes on at the next start, and then ends."""
        self.stopping = True
        # A signal to the whole group has reached the training, too, and a second one would end it at once. SIGHUP never
        # counts as a second one; Ctrl-C, which a terminal sends to the group, is not passed on, so that two end it.
        if self._child is not None and number != signal.SIGINT:
            self._child.send_signal(signal.SIGHUP)

    def work(self) -> int:
        """Does what is missing, in order; returns how many runs failed, each of which is tried once."""
        failed, to_do = 0, self._to_do()
        for run in self._all:
            if run not in to_do:  # Whoever recorded it may have been killed then.
                self._clean(run)
        for run in to_do:
            if self.stopping:
                break
            try:
                record = self._train(run)
            except (subprocess.CalledProcessError, ValueError) as error:
                failed += 1
                print(f"{run.name}: {error}; see {self._beside(run, '.log')}", flush=True)
                continue
            if record is not None:
                append(self._records, record.line())
                self._clean(run)
                print(f"{run.name}: {record.evaluations[-1][1]} in {record.processor_hours} hours", flush=True)
        return failed

    def _to_do(self) -> list[Run]:
        """Returns the missing runs, and those that made the episodes they need, where these are not in this folder."""
        left = missing(self._all, self._records)
        lacking = {run.data for run in left if run.data is not None and not self._data(run.data).exists()}
        return [run for run in self._all if run in left or run.name in lacking]

    def _clean(self, run: Run) -> None:
        shutil.rmtree(self._runs / run.file_name / "checkpoints", ignore_errors=True)  # With replay: many gigabytes.

    def _beside(self, run: Run, suffix: str) -> pathlib.Path:
        return self._runs / f"{run.file_name}{suffix}"

    def _data(self, name: str) -> pathlib.Path:
        (source,) = (run for run in self._all if run.name == name)
        return self._beside(source, ".hdf5")

    def _train(self, run: Run) -> Record | None:
        """Begins or resumes a run; None if it was stopped before its end.

        Raises:
            CalledProcessError: a command failed.
            ValueError: the run ended early, its folder has another one, or the data are not there that it learns from.
        """
        folder, parts = self._runs / run.file_name, self._beside(run, ".parts.jsonl")
        data = None if run.data is None else self._data(run.data)
        if data is not None and not data.exists():
            raise ValueError(f"its data are made at the end of {run.data}, which has not ended")
        words = run.words(str(folder), str(data))
        if any(folder.glob("checkpoints/*")):
            _check_same(run, folder, parts)
            words = [words[0], "--resume", str(folder)]
        else:  # It begins anew, and what was before does not count.
            shutil.rmtree(folder, ignore_errors=True)
            parts.unlink(missing_ok=True)
        append(parts, json.dumps({"commit": commit(), "options": run.options()}) + "\n")
        code, seconds = self._execute(run, words)
        append(parts, json.dumps({"processor_seconds": seconds}) + "\n")
        if self.stopping:
            return None
        if code != 0:
            raise subprocess.CalledProcessError(code, words)
        record = self._record(run, folder)
        if any(other.data == run.name for other in self._all):
            words = ["export", str(folder), "--episodes", str(NUM_DATA_EPISODES), "--explore"]
            file = self._beside(run, ".hdf5")
            if not file.exists() and self._execute(run, [*words, "--out", str(file)])[0] != 0 and not self.stopping:
                raise ValueError("its episodes could not be exported")
        return None if self.stopping else record

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
                preexec_fn=functools.partial(_become_child, os.getpid()),
            )
            if self.stopping:  # The signal came before there was a child to tell.
                self._child.send_signal(signal.SIGHUP)
            code = self._child.wait()
        self._child = None
        return code, _children_seconds() - before

    def _record(self, run: Run, folder: pathlib.Path) -> Record:
        log = folder / "logs" / "evaluation.csv"
        found = read_csv(log)[1] if log.exists() else []  # A full disk may have taken it.
        rows = [(int(float(row["steps"])), float(row["episode_return"])) for row in found]
        last = rows[-1][0] if rows else 0
        if last < run.steps:
            raise ValueError(f"expected {run.steps:,} steps, found {last:,} evaluated. Delete {folder} to repeat it")
        parts = read_jsonl(self._beside(run, ".parts.jsonl"))
        return Record(
            run,
            evaluations=[[step, round(value, 2)] for step, value in rows],
            processor_hours=round(sum(part.get("processor_seconds", 0.0) for part in parts) / 3_600, 3),
            versions=json.loads((folder / "config.json").read_text())["versions"],
            commit="+".join(dict.fromkeys(part["commit"] for part in parts if "commit" in part)),
        )


def _check_same(run: Run, folder: pathlib.Path, parts: pathlib.Path) -> None:
    """Refuses to go on with a folder that was begun with other options: ``config.json`` has only the last command."""
    first = next(iter(read_jsonl(parts)), {}) if parts.exists() else {}
    begun, now = set(first.get("options", ["options that were not noted"])), set(run.options())
    if begun != now:
        old, new = (" ".join(sorted(options)) or "nothing there" for options in (begun - now, now - begun))
        raise ValueError(
            f"evidence.toml has {new}, and {folder} was begun with {old}. Give the new settings a variant, or delete "
            "that folder to begin anew"
        )


def _become_child(parent: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and the queue asks by it to save.
    die_with(parent)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit() -> str:
    """Returns the repository's commit, with "-changed" where agentkit differs from it.

    Raises:
        OSError: there is no git, or it does not know.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"git {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + "-changed" * bool(git("status", "--porcelain", "--", "agentkit"))


def run(folder: pathlib.Path) -> int:
    """Does all that is missing at the lowest priority on one core; returns 1 if a run failed.

    Raises:
        LockedError: another queue is at work in the folder.
    """
    os.nice(19)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with run_lock(folder):
        queue = Queue(folder, read_runs())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # As nohup has it.
                signal.signal(number, queue.stop)
        return int(queue.work() > 0)
