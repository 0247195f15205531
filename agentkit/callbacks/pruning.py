"""Lets Optuna end runs that promise little. Who has a trial has imported optuna: nothing here does."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, final

from agentkit.callbacks.base import Callback, RunView, Stop, check_evaluates_before_its_end
from agentkit.counting import due_step
from agentkit.errors import ConfigError


@final
@dataclasses.dataclass
class Prune(Callback):
    """Reports evaluations to an Optuna trial; see `prune`."""

    trial: Any
    pruned: bool = dataclasses.field(default=False, init=False)
    reported: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        """Refuses what is no trial."""
        if not callable(getattr(self.trial, "report", None)) or not callable(getattr(self.trial, "should_prune", None)):
            raise ConfigError(f"prune: expected the trial that Optuna gives the objective, found {self.trial!r}.")

    def check(self, experiment: Any) -> None:
        """Refuses an experiment that makes no evaluation before its end."""
        check_evaluates_before_its_end(experiment, "prune")

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Reports the mean return at the step at which it was due, and stops where Optuna says so.

        Optuna compares trials at equal steps alone, and batches of environments are evaluated a little later.
        """
        num_steps = run.experiment.num_steps
        period = run.experiment.evaluation_period or max(num_steps // 10, 1)  # As a run has it by default.
        self.reported = due_step(run.steps, self.reported, period, num_steps)
        self.trial.report(float(record["episode_return"]), step=self.reported)
        self.pruned = bool(self.trial.should_prune())
        return Stop(f"pruned by Optuna at return {record['episode_return']:.6g}") if self.pruned else None

    def save(self) -> dict[str, Any]:
        """Returns the step of the newest report, for which the next evaluation of a resumed run is not taken."""
        return {"reported": self.reported}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned; a checkpoint of before it had one has none."""
        self.reported = int(state.get("reported", 0))

    def on_end(self, run: RunView) -> Stop | None:
        """Tells Optuna of the pruning, as it wants to be told: by its exception."""
        optuna: Any = sys.modules.get("optuna")
        if self.pruned and optuna is not None:
            raise optuna.TrialPruned(f"Pruned at step {run.steps:,}; the run is saved.")
        return None


def prune(trial: Any) -> Prune:
    """Reports each evaluation's mean return to an Optuna trial, and ends the run where Optuna prunes it.

    The run is saved; `agentkit.run` then raises `optuna.TrialPruned`, which ``study.optimize`` expects of an objective.
    A launched program raises nothing: its result's `stopped_by` says so.
    """
    return Prune(trial)
