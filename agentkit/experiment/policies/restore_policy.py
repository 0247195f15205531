"""Restores a run's policy from its folder: networks, parameters of a checkpoint, and the specs they were made for."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, final

import jax
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.callbacks import read_best
from agentkit.checkpoint import Checkpoint, nest_like, read_all, read_latest, steps
from agentkit.counting import parse_whole
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.policies.agent_parts import make_parts, state_shapes
from agentkit.experiment.policies.policy_file import decode_spec
from agentkit.experiment.runs.config_json import damaged, read_config, read_record
from agentkit.learning import Update
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import Nest
from agentkit.variables import VariableStore
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.canonical_actions import CanonicalActions
from agentkit.wrappers.flatten_actions import FlattenActions
from agentkit.wrappers.single_precision import SinglePrecision


class RestoredPolicy(NamedTuple):
    """Holds all that is needed to act as a run's checkpoint does.

    Attributes:
        experiment: the run's.
        networks: its agent's.
        store: has the parameters.
        found: the checkpoint; None where the parameters were in memory.
        environment_spec: what the networks were made for.
        own_actions: spec of the actions that the environment itself takes.
    """

    experiment: ExperimentConfig
    networks: Any
    store: VariableStore
    found: Checkpoint | None
    environment_spec: EnvironmentSpec
    own_actions: Nest


def check_run(run: Any) -> None:
    """Refuses what is neither a path nor an experiment, such as a `Result`.

    Raises:
        ConfigError: saying what was found.
    """
    if not isinstance(run, str | os.PathLike | ExperimentConfig):
        advice = " Its policies are its policy and best_policy." if hasattr(type(run), "best_policy") else ""
        raise ConfigError(
            f"Expected a run folder, or the experiment that was run, found a {type(run).__name__}.{advice}"
        )


def restore_policy(
    run: str | pathlib.Path | ExperimentConfig, checkpoint: str | int = "newest", **options: Any
) -> RestoredPolicy:
    """Returns the networks and parameters of a run's checkpoint.

    Args:
        run: the run folder, or the experiment that was run in its folder.
        checkpoint: "newest", "best", or a step.
        **options: see `read_config`.

    Raises:
        ConfigError: not a run folder, or one that cannot be rebuilt; or there is no such checkpoint.
        CheckpointError: it has no readable checkpoint.
    """
    check_run(run)
    replaced = options.keys() & {"environment", "wrappers", "agent"}
    if isinstance(options.get("environment"), DataAlone):
        replaced -= {"environment", "wrappers"}  # Nobody has given them.
    if not isinstance(run, ExperimentConfig):
        experiment, directory = read_config(run, **options), run
    elif run.run_directory is None:
        raise ConfigError("The experiment has no run_directory, and so no checkpoint. Give it one, and run it.")
    else:
        options.pop("imports", None)  # It is made already.
        experiment, directory = dataclasses.replace(run, **options), run.run_directory
    try:
        return restore_experiment(experiment, directory, checkpoint)
    except CheckpointError as error:
        if not replaced:
            raise
        given = " and ".join(sorted(replaced))
        raise CheckpointError(f"What was trained does not fit the {given} given here. {error}") from error


@final
@dataclasses.dataclass(frozen=True)
class DataAlone:
    """Stands for the environment of a run from data alone: it has specs, and refuses to be made."""

    spec: EnvironmentSpec

    def __repr__(self) -> str:
        return "data alone"

    def __call__(self, seed: int) -> NoReturn:
        """Raises a ConfigError, whatever the seed."""
        raise ConfigError("This policy has learned from data alone. To play it, give an environment, as environment=.")


def without_environment(run: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes with which a run's policy is loaded: with the specs of its data where it has no more.

    Args:
        run: a run folder; anything else has an environment.
        changes: that were asked for.

    Raises:
        ConfigError: not a run folder, or its ``config.json`` is damaged.
    """
    if "environment" in changes or not isinstance(run, str | pathlib.Path):
        return dict(changes)
    code = read_record(run).get("offline", {}).get("specs")
    if code is None:
        return dict(changes)
    try:
        spec = decode_spec(code)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:  # SpecError is a ValueError.
        raise damaged(pathlib.Path(run) / "config.json", error) from error
    return {"environment": DataAlone(spec), "wrappers": (), **changes}


def check_fits(spec: EnvironmentSpec, observations: Nest, actions: Nest) -> None:
    """Refuses an environment in which a policy would see or do other things than where it was trained.

    Args:
        spec: of the environment.
        observations: specs that the policy was trained with.
        actions: likewise.

    Raises:
        SpecError: with both.
    """
    for what, found, expected in (
        ("observations", spec.observations, observations),
        ("actions", spec.actions, actions),
    ):
        if _describe(found) != _describe(expected):
            raise SpecError(
                f"The policy was trained with {what} {_describe(expected)}, and this environment has "
                f"{_describe(found)}. Give one like that of its training, with the same settings and wrappers."
            )


def _describe(nest: Nest) -> str:
    def describe_leaf(name: str, leaf: Any) -> str:
        of = f" of {leaf.num_values} values" if isinstance(leaf, specs.DiscreteArray) else ""
        return f"{f'{name}: ' if tree.is_nested(nest) else ''}{leaf.dtype.name}{list(leaf.shape)}{of}"

    return ", ".join(map(describe_leaf, specs.leaf_names(nest), tree.flatten(nest)))


def restore_experiment(
    experiment: ExperimentConfig, run_directory: str | pathlib.Path, checkpoint: str | int = "newest"
) -> RestoredPolicy:
    """Returns what `restore_policy` does, of a run whose experiment is at hand."""
    found = find_checkpoint(run_directory, checkpoint)
    store = VariableStore()
    if isinstance(experiment.environment, DataAlone):
        spec = experiment.environment.spec
        actions = spec.actions
    else:
        with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
            spec, actions = make_environment_spec(environment), own_actions(environment)
    parts = make_parts(experiment.agent, spec)
    if experiment.agent.make_learner is not None:
        store.publish(*_read_own(found))
    elif "best" in found.state:
        best = found.state["best"]
        params = read_params(parts.update, best["policy"], f"The policy {found.path}")
        store.publish(int(best["num_updates"]), {"policy": params})
    else:
        learner = found.state["learner"]
        state = nests.restore_from_paths(placeholders(parts.state), learner["state"], "Learner state")
        store.publish(int(learner["num_updates"]), parts.compiled_update.variables(state))
    return RestoredPolicy(experiment, parts.networks, store, found, spec, actions)


def _read_own(found: Checkpoint) -> tuple[int, dict[str, Nest]]:
    """Returns the updates and the variables that a learner of a user's own has left in a checkpoint."""
    state = found.state["best" if "best" in found.state else "learner"]
    arrays = state["policy" if "best" in found.state else "variables"]
    variables = nests.restore_from_paths(nest_like(state["structure"]), arrays, f"The variables {found.path}")
    return int(state["num_updates"]), {"policy": variables} if "best" in found.state else variables


def find_checkpoint(run_directory: str | pathlib.Path, which: str | int) -> Checkpoint:
    """Returns a checkpoint of a run: "newest", "best", or one of a step, such as 100_000 or "100k".

    Raises:
        ConfigError: there is none of that step, or no best one; or `which` is neither.
        CheckpointError: there is none at all that can be read.
    """
    directory = pathlib.Path(run_directory) / "checkpoints"
    if which == "newest":
        found = read_latest(directory)
        if found is None:
            raise CheckpointError(f"The run {run_directory} has no checkpoint yet. Train it for longer.")
        return found
    if which == "best":
        best = read_best(run_directory)
        if best is None:
            raise ConfigError(
                f"The run {run_directory} has kept no best policy: it has not been evaluated yet, or was trained "
                "without callbacks.keep_best() (--no-keep-best). Take the newest checkpoint."
            )
        return best
    every = read_all(directory, step=(step := parse_step(which)))
    if not every:
        there = ", ".join(f"{step:,}" for step in dict.fromkeys(steps(directory))) or "none"
        raise ConfigError(f"The run {run_directory} has no checkpoint of step {step:,}. It has those of: {there}.")
    return every[0]


def steps_explored(state: Mapping[str, Any], steps: int) -> int:
    """Returns the steps at which schedules of exploration go on: those of all environments of an actor.

    Actors of a launched run count each their own, and the furthest one is meant. Of several agents these are the
    actions of one of them, on average. A best policy is kept without them: there they are the run's.

    Args:
        state: of the checkpoint.
        steps: of the run.
    """
    begun_at = max(map(int, state.get("explored", {}).values()), default=0)
    if state.get("launched"):
        return begun_at or steps
    num_agents = 1
    if "actors" in state:  # Of several agents.
        num_agents = sum(len(actor.get("actors", [actor])) for actor in state["actors"].values())  # Times policies.
        in_loop = state.get("loop", {}).get("num_agent_steps", steps * num_agents)  # Where older checkpoints have it.
        steps = int(state.get("num_agent_steps", in_loop))
    return begun_at + (steps - int(state.get("steps_of_others", 0)) - begun_at) // num_agents


def parse_step(which: str | int, what: str = "checkpoint") -> int:
    """Returns the step that says which checkpoint is meant, a number or a word such as 100k.

    Args:
        which: the number or word.
        what: names it in the error.

    Raises:
        ConfigError: it is none.
    """
    with contextlib.suppress(ValueError):
        if (step := parse_whole(str(which))) >= 0:
            return step
    raise ConfigError(f"{what}: expected 'newest', 'best' or a step, found {which!r}.")


def read_params(update: Update, arrays: Mapping[str, np.ndarray], label: str) -> Nest:
    """Returns a policy's parameters from arrays by path, such as `callbacks.keep_best` keeps.

    Args:
        update: the agent's, on its networks.
        arrays: by path.
        label: what holds them, for the error.

    Raises:
        CheckpointError: they are another agent's.
    """
    shapes = jax.eval_shape(update.variables, state_shapes(update))["policy"]
    return nests.restore_from_paths(placeholders(shapes), arrays, label)


def placeholders(shapes: Nest) -> Nest:
    """Returns arrays of these shapes and dtypes of one number each: to be compared with, nothing as large is made."""
    return jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)


def own_actions(environment: Any) -> Nest:
    """Returns the spec of the actions that the environment itself takes, below what makes it ready for an agent."""
    layer = environment
    while isinstance(layer, EnvironmentWrapper | ResumableEnvironment):
        inner = layer.environment
        if isinstance(layer, CanonicalActions):
            return inner.action_spec()
        if layer.action_spec() != inner.action_spec() and not isinstance(layer, SinglePrecision | FlattenActions):
            break  # A wrapper of the user's own: its actions are meant.
        layer = inner
    return environment.action_spec()
