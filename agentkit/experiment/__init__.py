"""Experiments: connect the boxes, in one process or in many."""

from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.identity import ChangedCodeWarning
from agentkit.experiment.config.trust import UntrustedCodeError
from agentkit.experiment.evaluation.evaluate import Evaluator, evaluate
from agentkit.experiment.evaluation.record_episodes import read_replay, record_episodes
from agentkit.experiment.evaluation.samples import Samples
from agentkit.experiment.evaluation.sampling import Sampler, sample
from agentkit.experiment.iteration import Iteration, iterate
from agentkit.experiment.launch.external import host_run, join_run
from agentkit.experiment.launch.nodes.actor import actor_node
from agentkit.experiment.launch.nodes.evaluator import evaluator_node
from agentkit.experiment.launch.nodes.gradient_actor import gradient_node
from agentkit.experiment.launch.nodes.inference import inference_node
from agentkit.experiment.launch.nodes.learner import learner_node
from agentkit.experiment.launch.nodes.replay import replay_node
from agentkit.experiment.launch.program import LaunchConfig, make_program, make_roles
from agentkit.experiment.launch.run import LaunchResult, launch, resume_launch, run_program
from agentkit.experiment.local import resume, run
from agentkit.experiment.multi_agent.config import Frozen, MultiAgentConfig, Pool, read_multi_agent_config
from agentkit.experiment.multi_agent.evaluation import evaluate_multi_agent
from agentkit.experiment.multi_agent.loading import load, load_multi_agent
from agentkit.experiment.multi_agent.tournament import Tournament, play_tournament
from agentkit.experiment.offline import OfflineConfig, read_offline_config, resume_offline, run_offline
from agentkit.experiment.policies.export.formats import DifferentActionsError
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.result import Result
from agentkit.experiment.profiling.profile import Profile
from agentkit.experiment.publishing.publish import push
from agentkit.experiment.runs.config_json import read_config, read_record
from agentkit.experiment.runs.open_run import Run, open_run
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.experiment.sweeps.seeds import RunsFailedError, SeedResult, run_seeds
from agentkit.experiment.train_by_name import train
from agentkit.experiment.training.training_loop import LogRow

__all__ = [
    "ChangedCodeWarning",
    "DifferentActionsError",
    "Evaluator",
    "ExperimentConfig",
    "Frozen",
    "Iteration",
    "LaunchConfig",
    "LaunchResult",
    "LoadedPolicy",
    "LogRow",
    "MultiAgentConfig",
    "OfflineConfig",
    "Pool",
    "Profile",
    "Result",
    "ResumeError",
    "Run",
    "RunsFailedError",
    "Sampler",
    "Samples",
    "SeedResult",
    "Tournament",
    "UntrustedCodeError",
    "actor_node",
    "evaluate",
    "evaluate_multi_agent",
    "evaluator_node",
    "gradient_node",
    "host_run",
    "inference_node",
    "iterate",
    "join_run",
    "launch",
    "learner_node",
    "load",
    "load_multi_agent",
    "make_program",
    "make_roles",
    "open_run",
    "play_tournament",
    "push",
    "read_config",
    "read_multi_agent_config",
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
