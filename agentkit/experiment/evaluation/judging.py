"""Finds what is to be evaluated: a run's checkpoint, how a training ended, or a policy."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from agentkit.errors import ConfigError, our_name, unknown_name
from agentkit.experiment.config.evaluation_plan import LONGEST_LIMIT
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.policies.agent_parts import make_parts
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.loading import counts_of, is_policy_file, load_one_agent
from agentkit.experiment.policies.restore_policy import restore_policy, steps_explored
from agentkit.experiment.policies.result import Result
from agentkit.specs import EnvironmentSpec
from agentkit.variables import VariableStore

_ARGUMENTS = (
    "agent", "checkpoint", "environment", "environment_settings", "evaluation_max_steps", "evaluation_samples",
    "imports", "num_envs", "num_episodes", "on_nan", "ready", "replay", "seed", "video", "workers", "wrappers",
)  # fmt: skip
"""What an evaluation depends on, or what the experiment of a run must be made again with in another environment."""


def check_options(
    options: Collection[str],
    arguments: Collection[str] = _ARGUMENTS,
    config: Any = ExperimentConfig,
    function: str = "evaluate",
) -> None:
    """Refuses arguments of a function that evaluates, which has no use for them.

    Args:
        options: their names.
        arguments: those that it has a use for.
        config: the class of its experiment.
        function: its name in agentkit.

    Raises:
        ConfigError: a field of the experiment that no evaluation depends on, or another word for one that it does.
        UnknownNameError: there is no such field; proposes the nearest name.
    """
    for name in sorted(set(options) - set(arguments)):
        if (ours := our_name(name, arguments)) is not None:
            raise ConfigError(f"{name}: agentkit.{function} calls it {ours!r}.")
        if name in {field.name for field in dataclasses.fields(config)}:
            raise ConfigError(
                f"{name}: no evaluation depends on it. Leave it out; what an evaluation takes is: "
                f"{', '.join(arguments)}."
            )
        raise unknown_name(f"argument of {function}", name, arguments)


def check_num_episodes(found: Any) -> None:
    """Refuses what is no number of episodes to play.

    Raises:
        ConfigError: saying what was found.
    """
    if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < 1:
        raise ConfigError(f"num_episodes: expected a whole number, at least 1 episode, found {found!r}.")


class Judged(NamedTuple):
    """Holds what plays, and in what.

    Attributes:
        experiment: of the environment, and of the agent.
        networks: the agent's.
        store: has the parameters.
        environment_spec: what the networks were made for.
        steps: that the policy was trained for; None where its file does not say.
        updates: likewise.
        explored: at which exploration on a schedule goes on.
    """

    experiment: ExperimentConfig
    networks: Any
    store: VariableStore
    environment_spec: EnvironmentSpec
    steps: int | None
    updates: int | None
    explored: int


def find_judged(
    run: str | pathlib.Path | ExperimentConfig | Result | LoadedPolicy, checkpoint: str | int, **options: Any
) -> Judged:
    """Returns what a run, the result of one, or a policy means to `evaluate`.

    Args:
        run: as `evaluate` takes it.
        checkpoint: "newest", "best", or a step; of a policy "newest" alone.
        **options: see `read_config`.

    Raises:
        ConfigError: there is none such, or a policy alone was given without an environment.
        CheckpointError: the run has no readable checkpoint.
    """
    if isinstance(run, Result):
        assert run.policies is not None, "every run gives them"
        explore = options.get("evaluation_samples", run.policies.experiment.evaluation_samples)
        run = run.policies.find_newest(bool(explore)) if checkpoint == "newest" else run.policies.experiment
    if isinstance(run, LoadedPolicy):
        if checkpoint != "newest":
            raise ConfigError(f"A policy has no checkpoints: leave out {checkpoint=}.")
        return _judged_policy(run, options)
    _check_kind(run)
    if not isinstance(run, ExperimentConfig) and is_policy_file(run):
        made = {name: options.pop(name) for name in ("agent", "imports") if name in options}
        explore = options.get("evaluation_samples", False)
        return _judged_policy(load_one_agent(run, checkpoint=checkpoint, explore=explore, **made), options)
    restored = restore_policy(run, checkpoint, **options)
    assert restored.found is not None, "it was read"
    steps, updates = counts_of(restored.found)
    explored = steps_explored(restored.found.state, steps)
    return Judged(*restored[:3], restored.environment_spec, steps, updates, explored)


def _check_kind(run: Any) -> None:
    if not isinstance(run, str | os.PathLike | ExperimentConfig):
        raise ConfigError(
            "Expected a run folder, the experiment that was run, what train or run returned, or a policy of "
            f"agentkit.load or its file; found a {type(run).__name__}."
        )


def _judged_policy(policy: LoadedPolicy, options: dict[str, Any]) -> Judged:
    options.pop("imports", None)  # It is made already.
    if options.get("evaluation_samples", policy.explore) != policy.explore:
        raise ConfigError(
            f"evaluation_samples={options['evaluation_samples']}: a policy plays as it was loaded, with "
            f"explore={policy.explore}. Load it with explore={not policy.explore}."
        )
    experiment = experiment_of_policy(policy, {**options, "evaluation_samples": policy.explore})
    store = VariableStore()
    store.publish(0, {"policy": policy.arrays})
    steps, updates = (None, None) if policy.origin is None else policy.origin.counts
    networks = make_parts(policy.agent, policy.environment_spec).networks
    return Judged(experiment, networks, store, policy.environment_spec, steps, updates, policy.num_steps)


def experiment_of_policy(policy: LoadedPolicy, options: dict[str, Any]) -> ExperimentConfig:
    """Returns what a policy is to play in: the experiment of its run, or of a file one in the environment given.

    An episode may take as many steps as in evaluations of the run. Of a file nobody knows how long the run was: it may
    take the most that any run's may.

    Args:
        policy: which plays.
        options: fields to replace. An environment among them has the run's wrappers around it, unless others are given,
            but not the arguments of the run's environment.

    Raises:
        ConfigError: a file's policy was given without an environment.
    """
    if policy.origin is not None and policy.origin.experiment is not None:
        if "environment" in options:
            options = {"environment_settings": {}} | options
        return dataclasses.replace(policy.origin.experiment, **options)
    if "environment" not in options:
        raise ConfigError("The policy's file names no environment to play in. Give one, as environment=.")
    return ExperimentConfig(policy.agent, num_steps=1, **({"evaluation_max_steps": LONGEST_LIMIT} | options))
