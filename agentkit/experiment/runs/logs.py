"""Writes a run's numbers to the loggers it asks for, and to the live progress line."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agentkit import checkpoint, loggers
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.runs.loggers import RunLoggers, make_logger, seconds_before
from agentkit.loggers.program_table import Speeds, program_row
from agentkit.types import TableInfo

_PROGRESS_SECONDS = 0.25


class RunLogs:
    """Holds the logs of one run: ``train`` (a row an episode), ``evaluation`` and ``learner``.

    Attributes:
        learners: instead of ``learner``, those of several policies: ``learner-ID``, by their names.
    """

    def __init__(
        self,
        experiment: RunConfig,
        stack: contextlib.ExitStack,
        found: checkpoint.Checkpoint | None,
        resume: bool,
        unit: str = "step",
    ):
        """Makes a `RunLogs`.

        Args:
            experiment: says which logs are wanted.
            stack: closes them.
            found: the checkpoint that the run goes on from; None for none.
            resume: whether it is resumed, be it from its start.
            unit: the word for what the run counts: "step" or "update".
        """
        resume_step = (0 if found is None else found.step) if resume else None
        self._terminal: loggers.TerminalLogger | None = None
        if shows_progress(experiment.progress):
            self._terminal = loggers.TerminalLogger(experiment.num_steps, start_step=resume_step or 0, unit=unit)
            stack.callback(self._terminal.close)
        self._loggers = stack.enter_context(RunLoggers(experiment, resume_step))
        self.train, self.learner = self.log("train"), self.log("learner")
        self.learners: dict[str, loggers.Logger] = {}
        is_due = found is not None and found.state.get("evaluation_due") and evaluation_plan(experiment).period
        # It is played again; a kill may have come between its row and the checkpoint after it.
        self.evaluation = self._loggers.log("evaluation", found.step - 1 if found is not None and is_due else None)
        self._next_progress = 0.0

    def log(self, label: str) -> loggers.Logger:
        """Returns the log of a name, which all loggers of the run get: "learner", or one of your own."""
        return self._loggers.log(label)

    def write_episode(self, record: Mapping[str, float]) -> None:
        """Logs a finished training episode."""
        self.train.write(record)
        if self._terminal is not None:
            self._terminal.write(record)

    def progress_due(self) -> bool:
        """Returns True a few times a second, if a progress line is shown."""
        return self._terminal is not None and time.monotonic() >= self._next_progress

    def show_progress(self, steps: int, updates: int, table: TableInfo) -> None:
        """Moves the progress line."""
        if self._terminal is not None:
            self._next_progress = time.monotonic() + _PROGRESS_SECONDS
            values = {"steps": steps, "updates": updates, "samples_per_insert": table.samples_per_insert}
            self._terminal.write(values)

    def message(self, text: str) -> None:
        """Prints a line above the progress line."""
        if self._terminal is not None:
            self._terminal.message(text)


def shows_progress(progress: bool | None) -> bool:
    """Returns whether to show a progress line: None asks for one where somebody sees it move."""
    if progress is not None:
        return progress
    # There is no standard error where it was closed, or under pythonw.
    return (sys.stderr is not None and sys.stderr.isatty()) or loggers.in_notebook()


def drop_later_rows(directory: pathlib.Path, step: int) -> None:
    """Drops what a launched run's nodes have logged of later steps, once none of them is there any more.

    Args:
        directory: the run folder.
        step: that the run goes on from.
    """
    for path in (directory / "logs").glob("*"):
        if re.fullmatch(r"train-\d+|evaluation(-\d+)?|program", path.stem) and path.suffix in (".csv", ".jsonl"):
            make = loggers.CsvLogger if path.suffix == ".csv" else loggers.JsonLinesLogger
            make(path, step).close()


class ProgramLog:
    """Writes the log ``program`` of a launched run: a row every `ExperimentConfig.log_seconds`, and one at the end.

    Rows begin when the tables of every replay node are known, and keep the columns of the first one. A context
    manager.
    """

    def __init__(self, experiment: RunConfig, roles: Sequence[str], resume_step: int = 0):
        """Makes a `ProgramLog`.

        Args:
            experiment: says which logs are wanted.
            roles: of the program.
            resume_step: the step a resumed run goes on from: rows of later ones are dropped.
        """
        folder = None if experiment.run_directory is None else pathlib.Path(experiment.run_directory)
        already = seconds_before(folder, resume_step, "program")
        logger = make_logger(experiment, "program", resume_step)
        self._logger = loggers.EveryNSeconds(logger, experiment.log_seconds)
        self._roles = tuple(roles)
        self._start = time.monotonic() - already
        self._speeds = Speeds()
        self._columns: tuple[str, ...] = ()

    def write(self, status: dict[str, Any]) -> None:
        """Takes the newest `RunStore.status`; writes a row for it if it is time."""
        now = time.monotonic()
        self._speeds.add(status, now)
        if self._columns or _tables_are_known(status):
            row = {"seconds": now - self._start, **program_row(status, self._speeds, self._roles)}
            self._columns = self._columns or tuple(row)
            self._logger.write({name: row.get(name) for name in self._columns})

    def close(self) -> None:
        """Writes the newest row, due or not, and closes the log. May be called twice."""
        self._logger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _tables_are_known(status: dict[str, Any]) -> bool:
    num_servers = sum(node["role"] == "replay" for node in status["nodes"].values())
    return sum(key.split("/")[0] == "tables" for key in status["values"]) >= max(num_servers, 1)


def learner_row(metrics: dict[str, float], steps: int, table: TableInfo) -> dict[str, Any]:
    """Returns a row of the learner's log: steps, metrics and the table's state; no metric takes a count's place."""
    counts = {"steps": steps, "replay_size": table.size, "samples_per_insert": table.samples_per_insert}
    return {"steps": steps, **metrics, **counts}
