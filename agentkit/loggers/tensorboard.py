"""TensorBoard event files, written without TensorFlow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, final

from agentkit.errors import missing_extra
from agentkit.loggers.base import Logger, to_numbers


@final
class TensorboardLogger(Logger):
    """Writes each number as the scalar ``label/name`` at the row's step. Extra: ``tensorboard``.

    Values that are None or not finite are left out. A row without `step_key` counts rows instead.

    Args:
        directory: where the event file goes.
        label: the group in which TensorBoard shows these scalars, e.g. "learner".
        resume_step: None for a new run; otherwise TensorBoard hides what an earlier, killed run wrote
            after this step.
        step_key: the name of the step.

    Raises:
        MissingExtraError: if tensorboardX is not installed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        label: str,
        resume_step: int | None = None,
        step_key: str = "steps",
    ):
        try:
            import tensorboardX
        except ImportError as error:
            raise missing_extra("tensorboardX", "tensorboard") from error
        purge_step = None if resume_step is None else resume_step + 1
        # The suffix keeps apart the files of several loggers that start in one folder in the same second.
        self._writer: Any = tensorboardX.SummaryWriter(
            os.fspath(directory), purge_step=purge_step, filename_suffix=f".{label}"
        )
        self._label = label
        self._step_key = step_key
        self._num_rows = 0

    def write(self, values: Mapping[str, Any]) -> None:
        """Adds one row's scalars.

        Raises:
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._writer is None:
            raise ValueError("This TensorBoard log is closed.")
        row = to_numbers(values)
        step = row.get(self._step_key)
        self._num_rows += 1
        for name, value in row.items():
            if name != self._step_key and value is not None and math.isfinite(value):
                self._writer.add_scalar(f"{self._label}/{name}", value, self._num_rows if step is None else int(step))

    def close(self) -> None:
        """Writes buffered rows and closes the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
