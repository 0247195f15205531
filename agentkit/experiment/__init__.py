"""Experiments: connect the boxes, in one process or in many."""

from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.experiment.distributed import (
    LaunchConfig,
    LaunchResult,
    launch,
    make_program,
    make_roles,
    relaunch,
    run_program,
)
from agentkit.experiment.evaluate import Evaluator, evaluate
from agentkit.experiment.local import Result, ResumeError, resume, run
from agentkit.experiment.profile import Profile
from agentkit.experiment.variants import with_tables

__all__ = [
    "Evaluator",
    "ExperimentConfig",
    "LaunchConfig",
    "LaunchResult",
    "Profile",
    "Result",
    "ResumeError",
    "evaluate",
    "launch",
    "make_program",
    "make_roles",
    "read_config",
    "relaunch",
    "resume",
    "run",
    "run_program",
    "with_tables",
]
