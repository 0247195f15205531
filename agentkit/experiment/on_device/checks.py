"""Refuses, before anything starts, what the training on the device cannot do."""

from __future__ import annotations

import contextlib
from typing import Any

from agentkit.agents.common.experience import Segments
from agentkit.callbacks.base import has
from agentkit.envs import given
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.errors import ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.loop import divide_each_other
from agentkit.specs import make_environment_spec

_MOST_STEPS = 2**31
"""Steps are counted in int32, which is all that JAX has without x64."""

# Settings of the host's loop, each with its option, the value that asks for nothing, and why it has no place here.
_HOST_ONLY = (
    ("workers", "--workers", 0, "environments run in the compiled loop, and in no process"),
    ("ready", "--ready", None, "all environments step together"),
    ("replay", "--replay", "in_process", "segments stay on the device"),
    ("devices", "--devices", None, "the loop runs on one device"),
    ("data", "--data", None, "there is no replay to fill"),
    ("columns", "--column", (), "nothing of Python's is called at a step"),
    ("wrappers", "--wrapper", (), "they are Python, and the loop calls none; change the environment itself"),
)


def check_settings(experiment: ExperimentConfig, is_profiled: bool = False) -> None:
    """Refuses settings, agents and callbacks that need the host's loop.

    Args:
        experiment: with `on_device`.
        is_profiled: whether a profile was asked for.

    Raises:
        ConfigError: names the first, and what to do.
    """
    for name, option, none, why in _HOST_ONLY:
        if getattr(experiment, name) != none:
            raise _refused(f"{name} ({option})", f"{why}. Leave it out")
    if is_profiled:
        raise _refused("profile (--profile)", "a step has no parts that can be timed apart. Leave it out")
    if experiment.num_steps >= _MOST_STEPS:
        raise _refused(f"num_steps={experiment.num_steps:,}", f"steps are counted below {_MOST_STEPS:,}. Take fewer")
    _check_experience(experiment)
    for callback in experiment.callbacks:
        for method in ("wrap", "on_step", "on_episode"):
            if has(callback, method):
                raise _refused(
                    f"the callback {type(callback).__name__} with {method}",
                    "nothing of Python's is called at a step or at an episode's end. Leave it out, or use "
                    "on_learner_log or on_evaluation_episode",
                )


def find_environment(experiment: ExperimentConfig) -> JaxEnvironment:
    """Returns the experiment's environment as the compiled loop steps it.

    Raises:
        ConfigError: it is none in JAX, or its actions would have to be changed for an agent.
    """
    with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
        found: Any = getattr(environment, "jax_environment", None)
        name = given.name_of(experiment.environment)
        if found is None:
            raise _refused(
                f"the environment {name}",
                "it is not written in JAX. Take one of 'jax:cartpole', 'jax:catch', 'jax:memory_chain' and "
                "'jax:point_mass', or a class of your own, derived from agentkit.envs.jax.base.JaxEnvironment",
            )
        own, prepared = make_environment_spec(found), make_environment_spec(environment)
        if own != prepared:
            parts = [part for part in own._fields if getattr(own, part) != getattr(prepared, part)]
            raise _refused(
                f"the environment {name}",
                f"its {' and '.join(parts)} are not what agents take, and no wrapper can change them here. Give it "
                "actions in [-1, 1] (or choices), of one axis, and single precision",
            )
    return found


def _check_experience(experiment: ExperimentConfig) -> None:
    for box in ("make_actor", "make_learner"):
        if getattr(experiment.agent, box) is not None:
            raise _refused(f"an agent's own {box}", "the loop calls nothing of Python's. Give a policy and an update")
    experience = experiment.agent.experience
    if not isinstance(experience, Segments):
        raise _refused(
            "the agent",
            f"it keeps experience as {type(experience).__name__}. So far agents that learn from segments run there: "
            "a2c, impala, npg, ppo, reinforce and trpo",
        )
    if experience.completes_episodes:
        raise _refused("batch_mode='complete_episodes'", "segments have one length. Take 'truncate_episodes'")
    if experience.reach is not None:
        raise _refused("views (--view)", "segments have no rows from before them. Leave them out")
    num_envs, batch_size = experiment.num_envs or 1, experience.batch_plan.batch_size
    if not divide_each_other(num_envs, batch_size):
        raise _refused(
            f"num_envs={num_envs} with batch_size={batch_size}", "one must be a multiple of the other. Change one"
        )


def _refused(what: str, why: str) -> ConfigError:
    return ConfigError(f"on_device (--on-device) does not go with {what}: {why}.")
