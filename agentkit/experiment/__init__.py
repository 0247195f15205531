"""Experiments: connect the boxes, in one process or in many."""

from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.experiment.distributed import LaunchConfig, LaunchResult, launch, make_program, relaunch
from agentkit.experiment.evaluate import Evaluator, evaluate
from agentkit.experiment.local import Result, ResumeError, resume, run

__all__ = [
    "Evaluator",
    "ExperimentConfig",
    "LaunchConfig",
    "LaunchResult",
    "Result",
    "ResumeError",
    "evaluate",
    "launch",
    "make_program",
    "read_config",
    "relaunch",
    "resume",
    "run",
]
