"""Experiments: connect the boxes in one process."""

from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.experiment.evaluate import Evaluator, evaluate
from agentkit.experiment.local import Result, ResumeError, resume, run

__all__ = ["Evaluator", "ExperimentConfig", "Result", "ResumeError", "evaluate", "read_config", "resume", "run"]
