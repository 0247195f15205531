"""A run as an iterator, for notebooks: rows of its logs as they are written."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from agentkit.callbacks import Callback
from agentkit.errors import says_what_was_meant
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.local import started
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.offline import OfflineConfig, started_offline
from agentkit.experiment.policies.result import Result
from agentkit.experiment.training.hooks import with_callbacks
from agentkit.experiment.training.training_loop import LogRow
from agentkit.loggers import Logger


@final
class Iteration:
    """Trains while it is iterated over; yields `LogRow`.

    Attributes:
        result: how the run ended; None before.
    """

    def __init__(self, experiment: ExperimentConfig | MultiAgentConfig | OfflineConfig, resume: bool) -> None:
        """Makes an `Iteration`, which begins with its loop."""
        self._experiment, self._resume = experiment, resume
        self.result: Result | None = None

    def __iter__(self) -> Iterator[LogRow]:
        """Trains; where the loop is left, saves and closes."""
        start: Any = started_offline if isinstance(self._experiment, OfflineConfig) else started
        with start(self._experiment, self._resume) as (training, stop):
            logs, rows = training.logs, training.rows
            for label in ("train", "learner", "evaluation"):
                setattr(logs, label, _Noted(getattr(logs, label), label, rows))
            for label, logger in logs.learners.items():
                logs.learners[label] = _Noted(logger, label, rows)
            try:
                with contextlib.closing(training.iterate(stop)) as progress:
                    yield from progress
            finally:
                self.result = training.result


@says_what_was_meant
def iterate(
    experiment: ExperimentConfig | MultiAgentConfig | OfflineConfig,
    *,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Iteration:
    """Trains as `agentkit.run` does, row by row: ``for row in agentkit.iterate(experiment): ...``.

    Leaving the loop early, also by an error, writes a checkpoint and closes the run.

    Args:
        experiment: what to run: an `ExperimentConfig`, a `MultiAgentConfig` or an `OfflineConfig`.
        resume: as of `agentkit.run`.
        callbacks: as of `agentkit.run`.

    Returns:
        An iterable of `LogRow`: each ended episode ("train"), row of the learner's log ("learner"; of several policies
        "learner-ID", each its own) and evaluation ("evaluation"). Its `result` is the run's `Result` after the
        loop.
    """
    return Iteration(with_callbacks(experiment, callbacks), resume)


@final
class _Noted(Logger):
    """Passes rows on, and keeps each for whoever iterates."""

    def __init__(self, to: Logger, label: str, rows: collections.deque[LogRow]):
        self._to, self._label, self._rows = to, label, rows

    def write(self, values: Mapping[str, Any]) -> None:
        self._to.write(values)
        self._rows.append(LogRow(self._label, dict(values)))

    def close(self) -> None:
        self._to.close()
