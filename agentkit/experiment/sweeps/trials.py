"""Keeps a sweep's trials in its folder: who works on which, how each ended, and none twice.

Trial 3 is in ``trial-0003``: ``trial.json`` has its settings and how it ended, ``seed0`` and so on are its runs. Who
works on it holds the folder's lock, which the system frees when that process ends: a trial that has not ended and
that nobody holds is one to go on with. That holds for processes of several machines, too, where they share the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Protocol, final

from agentkit.checkpoint import write_json
from agentkit.errors import ConfigError
from agentkit.experiment.runs.config_json import damaged
from agentkit.experiment.runs.lock import LOCK_FILE, LockedError, run_lock
from agentkit.experiment.sweeps.plan import PRUNING, SweepPlan
from agentkit.experiment.sweeps.space import Parameters
from agentkit.files import check_links, lock, open_lock, read_json, refusing_unwritable

BEGUN, COMPLETE, PRUNED, FAILED = "begun", "complete", "pruned", "failed"
_PLAN_FILE, _TRIAL_FILE, _TURN_FILE = "sweep.json", "trial.json", "turn"


@final
@dataclasses.dataclass(frozen=True)
class TrialRecord:
    """Holds what is known of a trial.

    Attributes:
        number: counts from 0.
        parameters: its settings.
        state: "begun", "complete", "pruned" or "failed".
        value: the metric of a complete trial, the newest return of a pruned one; None else.
        error: a line on why it failed.
    """

    number: int
    parameters: Parameters
    state: str = BEGUN
    value: float | None = None
    error: str = ""


def judged(record: TrialRecord) -> TrialRecord:
    """Returns the record without a value that is no finite number: a complete trial has failed then.

    What such a trial is worth cannot be said, and it would be neither better nor worse than any other.
    """
    if record.value is None or math.isfinite(record.value):
        return record
    if record.state != COMPLETE:
        return dataclasses.replace(record, value=None)
    error = f"its evaluations come to a return of {record.value}, expected a finite number."
    return dataclasses.replace(record, state=FAILED, value=None, error=error)


class Suggester(Protocol):
    """Proposes the settings of trials, and decides which are given up."""

    def propose(self, taken: set[int]) -> tuple[int, Parameters] | None:
        """Returns the number and settings of a trial that is not `taken`; None if there are no more."""
        ...

    def report(self, number: int, step: int, value: float) -> bool:
        """Takes a trial's return at a step; returns True if the trial is to be given up."""
        ...

    def tell(self, record: TrialRecord) -> None:
        """Takes how a trial ended. May be told again."""
        ...


@final
class ListSuggester:
    """Proposes the points of a grid, or random ones: trial number k is always the same."""

    def __init__(self, plan: SweepPlan):
        self._trials = plan.trials()

    def propose(self, taken: set[int]) -> tuple[int, Parameters] | None:
        """See `Suggester`."""
        return next(((number, trial) for number, trial in enumerate(self._trials) if number not in taken), None)

    def report(self, number: int, step: int, value: float) -> bool:
        """Gives nothing up."""
        return False

    def tell(self, record: TrialRecord) -> None:
        """Learns nothing."""


@final
class SweepFolder:
    """Reads and writes the folder of a sweep."""

    def __init__(self, path: pathlib.Path):
        """Takes the folder, which need not exist yet."""
        self.path = path

    def begin(self, plan: SweepPlan) -> None:
        """Makes the folder, or finds that the sweep in it is this one.

        Raises:
            ConfigError: another sweep is in it, or it cannot be written to, or a link in it leads to files outside.
        """
        check_links(self.path)
        path = self.path / _PLAN_FILE
        if path.is_file():
            try:
                found = read_json(path)
            except ValueError as error:
                raise damaged(path, error) from error
            now = json.loads(json.dumps(plan.key))
            ignored = () if found.get("method") == "tpe" else PRUNING  # Older versions took them of any method.
            names = {*found, *now}.difference(ignored)
            different = sorted(name for name in names if found.get(name) != now.get(name))
            if different:
                raise ConfigError(
                    f"{self.path} has the trials of a sweep with another {different[0]!r}. Give the file another name, "
                    f"or move {self.path} away. Only trials and jobs may be changed."
                )
            return
        with refusing_unwritable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(path, plan.key)

    def trial_path(self, number: int) -> pathlib.Path:
        """Returns the folder of a trial."""
        return self.path / f"trial-{number:04}"

    def records(self) -> list[TrialRecord]:
        """Returns the trials that have begun, by number.

        Raises:
            ConfigError: a file is damaged.
        """
        found = []
        for path in self.path.glob(f"trial-*/{_TRIAL_FILE}"):
            try:
                record = TrialRecord(**read_json(path))
                if type(record.number) is not int or self.trial_path(record.number) != path.parent:
                    raise ValueError(f"its number is {str(record.number)[:60]!r}, and its folder {path.parent.name}")
                found.append(judged(record))  # Older versions wrote NaN of a complete trial.
            except (ValueError, TypeError) as error:
                raise damaged(path, error) from error
        return sorted(found, key=lambda record: record.number)

    def write(self, record: TrialRecord) -> None:
        """Writes a trial's record, whole or not at all."""
        self.trial_path(record.number).mkdir(exist_ok=True)
        write_json(self.trial_path(record.number) / _TRIAL_FILE, dataclasses.asdict(record))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Lets one process at a time look for a trial to take; waits for others, each of which needs milliseconds."""
        with open_lock(self.path / _TURN_FILE) as file:
            lock(file, wait=True)
            yield

    def take(self, suggester: Suggester, total: int, stack: contextlib.ExitStack) -> TrialRecord | None:
        """Returns a trial that nobody works on, begun or new; None if there is none.

        Args:
            suggester: proposes new ones.
            total: how many trials there are to be.
            stack: holds the trial's lock.
        """
        with self.turn():
            records = self.records()
            for record in records:
                if record.state == BEGUN and self._hold(record.number, stack):
                    return record
            if len(records) >= total:
                return None
            proposed = suggester.propose({record.number for record in records})
            if proposed is None:
                return None
            record = TrialRecord(*proposed)
            self.write(record)
            return record if self._hold(record.number, stack) else None

    def _hold(self, number: int, stack: contextlib.ExitStack) -> bool:
        try:
            stack.enter_context(run_lock(self.trial_path(number)))
        except LockedError:
            return False
        return True

    def is_held(self, number: int) -> bool:
        """Returns True if another process works on a trial now."""
        try:
            with open(self.trial_path(number) / LOCK_FILE, "r+") as file:
                lock(file, wait=False)
        except OSError:
            return (self.trial_path(number) / LOCK_FILE).exists()
        return False
