"""Trains reinforcement-learning agents composed from parts, in one process or many.

    result = agentkit.train("dqn", "gymnasium:CartPole-v1", "50k")  # kept in runs/dqn-gymnasium_CartPole-v1-seed0
    agentkit.evaluate(result)["episode_return"]
    action = result.policy.select_action(observation)

To train:
    train             an agent by its name in an environment, by settings that are known to work
    run               an experiment: `ExperimentConfig`, of an agent such as `agents.sac.make_agent(...)`
    resume            go on with the run in a folder
    iterate           train in a loop of your own, which is given the logs row by row
    run_seeds         one experiment with several seeds
    launch            the same in many processes; `resume_launch`
    MultiAgentConfig  several agents in one environment, for `run`; `Frozen`, `Pool` (self-play), `load_multi_agent`,
                      `evaluate_multi_agent`, `play_tournament`
    run_offline       from data alone: `OfflineConfig`; `resume_offline`
    presets           settings that are known to work

To use what was trained:
    evaluate          returns of a run, of what `train` returned, or of a policy
    load              the policy of a run folder or a file: `select_action`, `save`, `export`
    sample            steps and episodes of a policy as arrays; `Sampler` keeps the environments
    open_run          the logs of a run folder, as rows or data frames
    push              a policy and its card to the Hugging Face hub or a folder

To compose: `compose`, an agent of an actor, a learner, tables and an adder; `Agent`, and the modules actors, adders,
agents, callbacks, datasets, distributed, envs, experiment, learning, loggers, losses, networks, replay, tune,
variables, wrappers.

``help(agentkit.train)`` says more about one of them, ``help("agentkit.agents.sac")`` about a module. Importing this
package loads no JAX: each name is loaded when it is first used. Start reading at `agentkit/README.md`, then
`agentkit/core.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentkit.version import __version__

if TYPE_CHECKING:
    from agentkit.agents.common.agent import Agent as Agent
    from agentkit.agents.common.compose import compose as compose
    from agentkit.experiment import ExperimentConfig as ExperimentConfig
    from agentkit.experiment import Frozen as Frozen
    from agentkit.experiment import MultiAgentConfig as MultiAgentConfig
    from agentkit.experiment import OfflineConfig as OfflineConfig
    from agentkit.experiment import Pool as Pool
    from agentkit.experiment import Sampler as Sampler
    from agentkit.experiment import evaluate_multi_agent as evaluate_multi_agent
    from agentkit.experiment import iterate as iterate
    from agentkit.experiment import load as load
    from agentkit.experiment import load_multi_agent as load_multi_agent
    from agentkit.experiment import open_run as open_run
    from agentkit.experiment import play_tournament as play_tournament
    from agentkit.experiment import push as push
    from agentkit.experiment import resume as resume
    from agentkit.experiment import resume_launch as resume_launch
    from agentkit.experiment import resume_offline as resume_offline
    from agentkit.experiment import run as run
    from agentkit.experiment import run_offline as run_offline
    from agentkit.experiment import run_seeds as run_seeds
    from agentkit.experiment import sample as sample
    from agentkit.experiment import train as train
    from agentkit.experiment.config import presets as presets
    from agentkit.experiment.evaluation.evaluate import evaluate as evaluate
    from agentkit.experiment.launching.run import launch as launch

_EXPERIMENT_NAMES = (
    "ExperimentConfig", "Frozen", "MultiAgentConfig", "OfflineConfig", "Pool", "Sampler", "evaluate",
    "evaluate_multi_agent", "iterate", "launch", "load", "load_multi_agent", "open_run", "play_tournament", "push",
    "resume", "resume_launch", "resume_offline", "run", "run_offline", "run_seeds", "sample", "train",
)  # fmt: skip
_SUBPACKAGES = (
    "actors",
    "adders",
    "agents",
    "callbacks",
    "datasets",
    "distributed",
    "envs",
    "experiment",
    "learning",
    "loggers",
    "losses",
    "networks",
    "replay",
    "tune",
    "variables",
    "wrappers",
)

# What one would call it, and where it is.
_ELSEWHERE = {
    "fit": "train",
    "learn": "train",
    "make": "envs.make",
    "make_agent": "agents.registry.make",
    "make_env": "envs.make",
    "predict": "load",
    "restore": "load",
}

__all__ = ["Agent", "__version__", "compose", "presets", *_EXPERIMENT_NAMES, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used (PEP 562)."""
    if name == "Agent":
        return importlib.import_module("agentkit.agents.common.agent").Agent
    if name == "compose":
        return importlib.import_module("agentkit.agents.common.compose").compose
    if name == "presets":
        return importlib.import_module("agentkit.experiment.config.presets")
    if name in _EXPERIMENT_NAMES:
        return getattr(importlib.import_module("agentkit.experiment"), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"agentkit.{name}")
    raise AttributeError(f"module 'agentkit' has no attribute {name!r}. {_meant(name)}")


def _meant(name: str) -> str:
    """Returns a sentence on what a name may have meant that there is not."""
    import difflib
    import pathlib

    agent = name.lower()
    if (
        agent != "registry"
        and not name.startswith("_")
        and (pathlib.Path(__file__).parent / "agents" / f"{agent}.py").is_file()
    ):
        return f"Give: agentkit.train({agent!r}, ...), or from agentkit.agents import {agent}; {agent}.make_agent()."
    if name in _ELSEWHERE:
        return f"Did you mean agentkit.{_ELSEWHERE[name]}?"
    near = difflib.get_close_matches(agent, {each.lower(): each for each in __all__}, n=1)
    if near:
        return f"Did you mean agentkit.{next(each for each in __all__ if each.lower() == near[0])}?"
    return f"It has: {', '.join(__all__)}"


def __dir__() -> list[str]:
    return sorted(__all__)
