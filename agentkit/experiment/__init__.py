"""Experiments: connect the boxes, in one process or in many."""

from agentkit.experiment.by_name import train
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.config_json import read_config, read_record
from agentkit.experiment.deploy.formats import DifferentActionsError
from agentkit.experiment.deploy.publish import push
from agentkit.experiment.evaluate import Evaluator, evaluate
from agentkit.experiment.identity import ChangedCodeWarning
from agentkit.experiment.iterating import Iteration, iterate
from agentkit.experiment.launch.actor import actor_node
from agentkit.experiment.launch.evaluator import evaluator_node
from agentkit.experiment.launch.external import host_run, join_run
from agentkit.experiment.launch.gradient import gradient_node
from agentkit.experiment.launch.inference import inference_node
from agentkit.experiment.launch.learner import learner_node
from agentkit.experiment.launch.program import LaunchConfig, make_program, make_roles
from agentkit.experiment.launch.replay import replay_node
from agentkit.experiment.launch.run import LaunchResult, launch, resume_launch, run_program
from agentkit.experiment.loading import LoadedPolicy, load
from agentkit.experiment.local import resume, run
from agentkit.experiment.offline import OfflineConfig, read_offline_config, resume_offline, run_offline
from agentkit.experiment.profile import Profile
from agentkit.experiment.record import read_replay, record_episodes
from agentkit.experiment.result import Result
from agentkit.experiment.resuming import ResumeError
from agentkit.experiment.run_folder import Run, open_run
from agentkit.experiment.sampling import Samples, sample
from agentkit.experiment.seeds import RunsFailedError, SeedResult, run_seeds
from agentkit.experiment.training import LogRow
from agentkit.experiment.trust import UntrustedCodeError

__all__ = [
    "ChangedCodeWarning",
    "DifferentActionsError",
    "Evaluator",
    "ExperimentConfig",
    "Iteration",
    "LaunchConfig",
    "LaunchResult",
    "LoadedPolicy",
    "LogRow",
    "OfflineConfig",
    "Profile",
    "Result",
    "ResumeError",
    "Run",
    "RunsFailedError",
    "Samples",
    "SeedResult",
    "UntrustedCodeError",
    "actor_node",
    "evaluate",
    "evaluator_node",
    "gradient_node",
    "host_run",
    "inference_node",
    "iterate",
    "join_run",
    "launch",
    "learner_node",
    "load",
    "make_program",
    "make_roles",
    "open_run",
    "push",
    "read_config",
    "read_offline_config",
    "read_record",
    "read_replay",
    "record_episodes",
    "replay_node",
    "resume",
    "resume_launch",
    "resume_offline",
    "run",
    "run_offline",
    "run_program",
    "run_seeds",
    "sample",
    "train",
]
