"""Keeps the best policy of a run in its folder, and reads it back.

``RUN/best`` holds one checkpoint (see `agentkit.checkpoint`) of the parameters that were evaluated. The folder itself
is the memory: a killed run that goes on finds its best there, whenever its last checkpoint was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from agentkit import checkpoint, nests
from agentkit.callbacks.base import Callback, RunView, Stop, check_evaluates
from agentkit.errors import CheckpointError, ConfigError

try:
    import fcntl
except ImportError:  # Windows, where there is one evaluator, in the one process.
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

FOLDER = "best"


@final
@dataclasses.dataclass
class KeepBest(Callback):
    """Keeps the policy of the best evaluation; see `keep_best`."""

    best: float | None = dataclasses.field(default=None, init=False)

    def check(self, experiment: Any) -> None:
        """Refuses an experiment without run folder or evaluations."""
        check_evaluates(experiment, "keep_best")
        if experiment.run_directory is None:
            raise ConfigError("keep_best keeps the policy in the run folder: give the experiment a run_directory.")

    def on_start(self, run: RunView, environment: Any) -> Stop | None:
        """Finds the best so far."""
        assert run.run_directory is not None, "check has seen it"
        found = read_best(run.run_directory)
        self.best = None if found is None else _return(found)
        return None

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Writes the policy, if this is the best evaluation. A disk that refuses it is a warning."""
        if not (self.best is None or record["episode_return"] > self.best) or np.isnan(record["episode_return"]):
            return None
        assert run.run_directory is not None, "check has seen it"
        directory = run.run_directory / FOLDER
        try:
            with _locked(directory):  # Several evaluators of a launched program take turns here.
                found = read_best(run.run_directory)
                if found is None or record["episode_return"] > _return(found):
                    checkpoint.write(directory, run.steps, _state(run, record), max_to_keep=1)
                    self.best = float(record["episode_return"])
                else:
                    self.best = _return(found)
        except (CheckpointError, OSError) as error:
            warnings.warn(
                f"{error} The best policy is not kept; training goes on.", checkpoint.CheckpointWarning, stacklevel=2
            )
        return None


def keep_best() -> KeepBest:
    """Keeps the policy of the evaluation with the highest mean return in ``RUN/best``, which a kill leaves whole.

    `agentkit.load(run, checkpoint="best")` and ``agentkit evaluate RUN --checkpoint best`` read it. Of equal returns
    the first stays.
    """
    return KeepBest()


def read_best(run_directory: str | pathlib.Path) -> checkpoint.Checkpoint | None:
    """Returns what `keep_best` has kept in a run folder; None if there is nothing.

    ``state["best"]`` has ``policy``, the parameters by path, and ``evaluation``, the record. After a kill there may be
    two: the better one is meant.

    Raises:
        CheckpointError: everything there is damaged.
    """
    found = checkpoint.read_all(pathlib.Path(run_directory) / FOLDER)
    return max(found, key=_return, default=None)


def _return(found: checkpoint.Checkpoint) -> float:
    return float(found.state["best"]["evaluation"]["episode_return"])


def _state(run: RunView, record: dict[str, Any]) -> dict[str, Any]:
    params = nests.flatten_to_paths(run.get_params())
    best = {
        "num_updates": int(run.updates),
        "evaluation": {name: value for name, value in record.items() if isinstance(value, int | float)},
        "policy": {path: np.array(leaf) for path, leaf in params.items()},
    }
    return {"experiment": run.experiment.describe(), "best": best}


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as file:
        if _HAS_LOCKS:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
