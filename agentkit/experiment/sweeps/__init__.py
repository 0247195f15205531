"""Sweeps: many runs of one experiment with other settings, proposed by a grid, at random, or by Optuna."""

from agentkit.experiment.sweeps.plan import METHODS, METRICS, PRUNERS, SweepPlan
from agentkit.experiment.sweeps.run import SweepResult, run_sweep
from agentkit.experiment.sweeps.space import Choice, Interval
from agentkit.experiment.sweeps.trials import TrialRecord

__all__ = [
    "METHODS",
    "METRICS",
    "PRUNERS",
    "Choice",
    "Interval",
    "SweepPlan",
    "SweepResult",
    "TrialRecord",
    "run_sweep",
]
