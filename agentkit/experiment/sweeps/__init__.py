"""Sweeps: many runs of one experiment with other settings, proposed by a grid, at random, or by Optuna.

A trial is a command line of ``agentkit train``, so a sweep takes whatever that takes. Only folders hold its state, and
it prunes by the logs in them and a SIGTERM: no hook is in the training.
"""

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
