"""Experiments: connect the boxes, in one process or in many.

Each name is loaded when it is first used: a run in one process needs neither programs of many nor sweeps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.experiment.config.experiment_config import ExperimentConfig as ExperimentConfig
    from agentkit.experiment.config.identity import ChangedCodeWarning as ChangedCodeWarning
    from agentkit.experiment.config.trust import UntrustedCodeError as UntrustedCodeError
    from agentkit.experiment.evaluation.evaluate import Evaluator as Evaluator
    from agentkit.experiment.evaluation.evaluate import evaluate as evaluate
    from agentkit.experiment.evaluation.record_episodes import read_replay as read_replay
    from agentkit.experiment.evaluation.record_episodes import record_episodes as record_episodes
    from agentkit.experiment.evaluation.samples import Samples as Samples
    from agentkit.experiment.evaluation.sampling import Sampler as Sampler
    from agentkit.experiment.evaluation.sampling import sample as sample
    from agentkit.experiment.iteration import Iteration as Iteration
    from agentkit.experiment.iteration import iterate as iterate
    from agentkit.experiment.launching.external import host_run as host_run
    from agentkit.experiment.launching.external import join_run as join_run
    from agentkit.experiment.launching.nodes.actor import actor_node as actor_node
    from agentkit.experiment.launching.nodes.evaluator import evaluator_node as evaluator_node
    from agentkit.experiment.launching.nodes.gradient_actor import gradient_node as gradient_node
    from agentkit.experiment.launching.nodes.inference import inference_node as inference_node
    from agentkit.experiment.launching.nodes.inference import inference_role as inference_role
    from agentkit.experiment.launching.nodes.learner import learner_node as learner_node
    from agentkit.experiment.launching.nodes.replay import replay_node as replay_node
    from agentkit.experiment.launching.program import LaunchConfig as LaunchConfig
    from agentkit.experiment.launching.program import make_program as make_program
    from agentkit.experiment.launching.program import make_roles as make_roles
    from agentkit.experiment.launching.run import LaunchResult as LaunchResult
    from agentkit.experiment.launching.run import launch as launch
    from agentkit.experiment.launching.run import resume_launch as resume_launch
    from agentkit.experiment.launching.run import run_program as run_program
    from agentkit.experiment.launching.several_learners import run_learners as run_learners
    from agentkit.experiment.local import resume as resume
    from agentkit.experiment.local import run as run
    from agentkit.experiment.multi_agent.config import Frozen as Frozen
    from agentkit.experiment.multi_agent.config import MultiAgentConfig as MultiAgentConfig
    from agentkit.experiment.multi_agent.config import read_multi_agent_config as read_multi_agent_config
    from agentkit.experiment.multi_agent.judging.evaluation import evaluate_multi_agent as evaluate_multi_agent
    from agentkit.experiment.multi_agent.judging.tournament import Tournament as Tournament
    from agentkit.experiment.multi_agent.judging.tournament import play_tournament as play_tournament
    from agentkit.experiment.multi_agent.loading import load as load
    from agentkit.experiment.multi_agent.loading import load_multi_agent as load_multi_agent
    from agentkit.experiment.offline import OfflineConfig as OfflineConfig
    from agentkit.experiment.offline import read_offline_config as read_offline_config
    from agentkit.experiment.offline import resume_offline as resume_offline
    from agentkit.experiment.offline import run_offline as run_offline
    from agentkit.experiment.policies.export.formats import DifferentActionsError as DifferentActionsError
    from agentkit.experiment.policies.loaded_policy import LoadedPolicy as LoadedPolicy
    from agentkit.experiment.policies.pool import Pool as Pool
    from agentkit.experiment.policies.result import Result as Result
    from agentkit.experiment.profiling.profile import Profile as Profile
    from agentkit.experiment.publishing.publish import push as push
    from agentkit.experiment.runs.config_json import read_config as read_config
    from agentkit.experiment.runs.config_json import read_record as read_record
    from agentkit.experiment.runs.open_run import Run as Run
    from agentkit.experiment.runs.open_run import open_run as open_run
    from agentkit.experiment.runs.resume_checks import ResumeError as ResumeError
    from agentkit.experiment.sweeps.seeds import RunsFailedError as RunsFailedError
    from agentkit.experiment.sweeps.seeds import SeedResult as SeedResult
    from agentkit.experiment.sweeps.seeds import run_seeds as run_seeds
    from agentkit.experiment.train_by_name import train as train
    from agentkit.experiment.training.training_loop import LogRow as LogRow

_NAMES = {
    "config.experiment_config": ("ExperimentConfig",),
    "config.identity": ("ChangedCodeWarning",),
    "config.trust": ("UntrustedCodeError",),
    "evaluation.evaluate": ("Evaluator", "evaluate"),
    "evaluation.record_episodes": ("read_replay", "record_episodes"),
    "evaluation.samples": ("Samples",),
    "evaluation.sampling": ("Sampler", "sample"),
    "iteration": ("Iteration", "iterate"),
    "launching.external": ("host_run", "join_run"),
    "launching.nodes.actor": ("actor_node",),
    "launching.nodes.evaluator": ("evaluator_node",),
    "launching.nodes.gradient_actor": ("gradient_node",),
    "launching.nodes.inference": ("inference_node", "inference_role"),
    "launching.nodes.learner": ("learner_node",),
    "launching.nodes.replay": ("replay_node",),
    "launching.program": ("LaunchConfig", "make_program", "make_roles"),
    "launching.run": ("LaunchResult", "launch", "resume_launch", "run_program"),
    "launching.several_learners": ("run_learners",),
    "local": ("resume", "run"),
    "multi_agent.config": ("Frozen", "MultiAgentConfig", "read_multi_agent_config"),
    "policies.pool": ("Pool",),
    "multi_agent.judging.evaluation": ("evaluate_multi_agent",),
    "multi_agent.judging.tournament": ("Tournament", "play_tournament"),
    "multi_agent.loading": ("load", "load_multi_agent"),
    "offline": ("OfflineConfig", "read_offline_config", "resume_offline", "run_offline"),
    "policies.export.formats": ("DifferentActionsError",),
    "policies.loaded_policy": ("LoadedPolicy",),
    "policies.result": ("Result",),
    "profiling.profile": ("Profile",),
    "publishing.publish": ("push",),
    "runs.config_json": ("read_config", "read_record"),
    "runs.open_run": ("Run", "open_run"),
    "runs.resume_checks": ("ResumeError",),
    "sweeps.seeds": ("RunsFailedError", "SeedResult", "run_seeds"),
    "train_by_name": ("train",),
    "training.training_loop": ("LogRow",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used (PEP 562)."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"agentkit.experiment.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'agentkit.experiment' has no attribute {name!r}. It has: {', '.join(__all__)}")
