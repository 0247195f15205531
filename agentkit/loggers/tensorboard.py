"""TensorBoard event files, written without TensorFlow."""

from __future__ import annotations

import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any, final

from agentkit.errors import missing_extra
from agentkit.loggers.base import Logger, to_numbers

RESULTS = ("evaluation/episode_return", "train/episode_return")
"""The scalars whose newest value TensorBoard shows beside the hyperparameters."""


@final
class TensorboardLogger(Logger):
    """Writes each number as the scalar ``label/name`` at the row's step. Extra: ``tensorboard``.

    Values that are None or not finite are left out. A row without `step_key` counts rows instead. A resumed run writes
    a new file into the same folder. Of what a killed run had written after its last checkpoint, TensorBoard hides all
    from the new file's first step on; its Python classes, such as ``EventAccumulator``, keep it.

    Args:
        directory: where the event file goes.
        label: the group in which TensorBoard shows these scalars, e.g. "learner".
        step_key: the name of the step.
        hyperparameters: of the run, for TensorBoard's page of that name, with the newest returns of evaluation and
            training beside them; None writes none. One log of a folder should.

    Raises:
        MissingExtraError: if tensorboardX is not installed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        label: str,
        step_key: str = "steps",
        hyperparameters: Mapping[str, bool | int | float | str] | None = None,
    ):
        try:
            from tensorboardX import event_file_writer
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as error:
            raise missing_extra("tensorboardX", "tensorboard") from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
        # Not its SummaryWriter: that one's thread dies of a full disk, and who writes then waits for ever. The suffix
        # keeps apart the files of several loggers that start in one folder in the same second.
        self._writer: Any = event_file_writer.EventsWriter(
            os.path.join(directory, "events"), filename_suffix=f".{label}"
        )
        # No SessionLog.START where a run goes on: it hides later rows of all files that are read before its own, and
        # logs of the same run may be among them.
        self._end: Any = None
        if hyperparameters is not None:
            from tensorboardX.summary import hparams

            experiment, start, self._end = hparams(dict(hyperparameters), dict.fromkeys(RESULTS, 0.0))
            for summary in (experiment, start):
                self._write(0, summary)
            self._writer.flush()
        self._label = label
        self._step_key = step_key
        self._num_rows = 0

    def write(self, values: Mapping[str, Any]) -> None:
        """Adds one row's scalars.

        Raises:
            OSError: there is no room; what is missing is written with a later row.
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._writer is None:
            raise ValueError("This TensorBoard log is closed.")
        row = to_numbers(values)
        step = row.get(self._step_key)
        self._num_rows += 1
        scalars = [
            self._summary.Value(tag=f"{self._label}/{name}", simple_value=value)
            for name, value in row.items()
            if name != self._step_key and value is not None and math.isfinite(value)
        ]
        number = self._num_rows if step is None else int(step)
        self._write(number, self._summary(value=scalars))
        self._writer.flush()

    def close(self) -> None:
        """Writes buffered rows and closes the event file; where no exception passes, the run counts as a success."""
        if self._writer is not None:
            if self._end is not None and sys.exception() is None:
                self._write(self._num_rows, self._end)
            writer, self._writer = self._writer, None
            writer.close()

    def _write(self, step: int, summary: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
