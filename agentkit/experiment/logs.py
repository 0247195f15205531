"""Where a run's numbers go: CSV files in its folder, TensorBoard, and the live progress line."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from agentkit import loggers
from agentkit.experiment.config import ExperimentConfig
from agentkit.types import TableInfo

_PROGRESS_SECONDS = 0.25


class RunLogs:
    """The logs of one run: ``train`` (a row an episode), ``evaluation`` and ``learner``."""

    def __init__(self, experiment: ExperimentConfig, stack: contextlib.ExitStack, resume_step: int | None):
        """Makes one.

        Args:
            experiment: says which logs are wanted.
            stack: closes them.
            resume_step: the step a resumed run goes on from; None for a new run.
        """
        self._terminal: loggers.TerminalLogger | None = None
        if experiment.progress:
            self._terminal = loggers.TerminalLogger(experiment.num_steps, start_step=resume_step or 0)
            stack.callback(self._terminal.close)
        self.train, self.evaluation, self.learner = (
            stack.enter_context(make_logger(experiment, label, resume_step))
            for label in ("train", "evaluation", "learner")
        )
        self._next_progress = 0.0

    def write_episode(self, record: Mapping[str, float]) -> None:
        """Logs a finished training episode."""
        self.train.write(record)
        if self._terminal is not None:
            self._terminal.write(record)

    def progress_due(self) -> bool:
        """True a few times a second, if a progress line is shown."""
        return self._terminal is not None and time.monotonic() >= self._next_progress

    def show_progress(self, steps: int, updates: int, table: TableInfo) -> None:
        """Moves the progress line."""
        if self._terminal is not None:
            self._next_progress = time.monotonic() + _PROGRESS_SECONDS
            values = {"steps": steps, "updates": updates, "samples_per_insert": table.samples_per_insert}
            self._terminal.write(values)

    def say(self, text: str) -> None:
        """Prints a line above the progress line."""
        if self._terminal is not None:
            self._terminal.message(text)


def make_logger(experiment: ExperimentConfig, label: str, resume_step: int | None) -> loggers.Logger:
    """The log `label` of a run: a CSV file and, if wanted, TensorBoard; nothing without a run folder."""
    if experiment.run_directory is None:
        return loggers.Dispatcher([])
    directory = pathlib.Path(experiment.run_directory) / "logs"
    made: list[loggers.Logger] = [loggers.CsvLogger(directory / f"{label}.csv", resume_step=resume_step)]
    if experiment.tensorboard:
        made.append(loggers.TensorboardLogger(directory / "tensorboard", label, resume_step=resume_step))
    return loggers.Dispatcher(made)


def learner_row(metrics: dict[str, float], steps: int, table: TableInfo) -> dict[str, Any]:
    """A row of the learner's log: its metrics beside the environment steps and the replay table's state."""
    return {
        "steps": steps,
        **metrics,
        "replay_size": table.size,
        "samples_per_insert": table.samples_per_insert,
    }
