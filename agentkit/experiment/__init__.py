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
from agentkit.experiment.local import Result, resume, run
from agentkit.experiment.offline import OfflineConfig, read_offline_config, resume_offline, run_offline
from agentkit.experiment.profile import Profile
from agentkit.experiment.record import read_replay, record_episodes
from agentkit.experiment.resuming import ResumeError

__all__ = [
    "Evaluator",
    "ExperimentConfig",
    "LaunchConfig",
    "LaunchResult",
    "OfflineConfig",
    "Profile",
    "Result",
    "ResumeError",
    "evaluate",
    "launch",
    "make_program",
    "make_roles",
    "read_config",
    "read_offline_config",
    "read_replay",
    "record_episodes",
    "relaunch",
    "resume",
    "resume_offline",
    "run",
    "run_offline",
    "run_program",
]
