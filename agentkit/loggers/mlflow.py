"""MLflow: a run there for the run here. The one file that imports mlflow."""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, final

from agentkit.errors import ConfigError, missing_extra
from agentkit.loggers.base import Logger, RunInfo, to_numbers
from agentkit.loggers.claims import claim

_LONGEST_VALUE = 500  # Of a parameter, for every kind of store.
_MOST_PARAMETERS = 100  # In one call.


@final
class MlflowLogger(Logger):
    """Sends rows to MLflow as metrics, and hyperparameters as parameters. Extra: ``mlflow``, which is mlflow-skinny.

    MLFLOW_TRACKING_URI says where to, as always; without it MLflow keeps ``mlflow.db`` in the working directory.
    MLFLOW_EXPERIMENT_NAME says which experiment, "agentkit" without it. A run that goes on after a stop goes on in the
    same MLflow run, whose id is in ``logs/mlflow.json``; so do all nodes of a program of many processes.

    Args:
        run: the run that is logged.
        step_key: the name of the step.

    Raises:
        ConfigError: MLflow refuses the place to write to.
        MissingExtraError: mlflow is not installed.
        OSError: MLflow cannot be reached.
    """

    def __init__(self, run: RunInfo, step_key: str = "steps"):
        try:
            from mlflow import entities, exceptions
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise missing_extra("mlflow", "mlflow") from error
        self._metric, self._param, self._tag = entities.Metric, entities.Param, entities.RunTag
        self._error: type[Exception] = exceptions.MlflowException
        self._step_key = step_key
        self._num_rows = 0
        try:
            self._client: Any = MlflowClient()
        except self._error as error:
            raise ConfigError(f"MLflow: {error} MLFLOW_TRACKING_URI says where to write.") from error
        self._unsent = [self._param(key, str(value)[:_LONGEST_VALUE]) for key, value in run.config.items()]
        self._unclaimed = None if run.directory is None else run.directory / "logs" / "mlflow.json"
        with self._reaching():
            self._run_id = self._begin(run)
        # The run is there now: the first row tries again, and no logger made anew, which may not find it.
        with contextlib.suppress(self._error, OSError):
            self._settle()
        self._ends_run = run.node in (None, "learner")

    def write(self, values: Mapping[str, Any]) -> None:
        """Sends one row; None is left out, and so is what is not finite. Signs that MLflow refuses become ``_``.

        Raises:
            OSError: MLflow cannot be reached.
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._client is None:
            raise ValueError("This MLflow log is closed.")
        row = to_numbers(values)
        self._num_rows += 1
        given, now = row.get(self._step_key), round(time.time() * 1000)
        step = self._num_rows if given is None else int(given)
        metrics = [
            self._metric(_allowed(name), value, now, step)
            for name, value in row.items()
            if name != self._step_key and value is not None and math.isfinite(value)
        ]
        with self._reaching():
            try:
                self._settle()
            except ConfigError as error:  # Written and damaged by another since: no reason to end a training.
                raise OSError(str(error)) from error
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Marks the MLflow run as finished, or as failed where an exception passes."""
        client, self._client = self._client, None
        if client is not None and self._ends_run:
            with self._reaching():
                client.set_terminated(self._run_id, "FINISHED" if sys.exception() is None else "FAILED")

    def _begin(self, run: RunInfo) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "agentkit")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        if self._unclaimed is not None and self._unclaimed.exists():
            run_id, self._unclaimed = claim(self._unclaimed, ""), None
            self._client.update_run(run_id, status="RUNNING")
            if self._client.get_run(run_id).data.params:  # None where who began it was killed before it sent them.
                self._unsent = []
            return run_id
        own: str = self._client.create_run(experiment, run_name=run.name).info.run_id
        return own

    def _settle(self) -> None:
        """Keeps the MLflow run's id in the run folder and sends the hyperparameters, what of both is not done yet."""
        if self._unclaimed is not None:
            with contextlib.suppress(OSError):  # No room on the disk: the next row tries again, and this one goes out.
                run_id, self._unclaimed = claim(self._unclaimed, self._run_id), None
                if run_id != self._run_id:  # Another node was first.
                    self._client.delete_run(self._run_id)
                    self._run_id, self._unsent = run_id, []
        while self._unsent:
            self._client.log_batch(self._run_id, params=self._unsent[:_MOST_PARAMETERS])
            del self._unsent[:_MOST_PARAMETERS]

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise OSError(str(error)) from error


def _allowed(name: str) -> str:
    """Returns a metric's name as MLflow takes it, which refuses the whole row for one with other signs."""
    return posixpath.normpath(re.sub(r"[^\w\-. :/]", "_", name))
