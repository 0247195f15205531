"""Begins a run with the training state of another one: offline to online, or with other settings.

All of it or an error: a part that is left out would be in no log (decision 80).
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from agentkit import checkpoint, nests
from agentkit.agents.addons import gail
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.identity import describe_agent
from agentkit.experiment.policies.agent_parts import AgentParts
from agentkit.experiment.policies.restore_policy import find_checkpoint, placeholders, read_params
from agentkit.experiment.runs.config_json import read_record
from agentkit.learning import Update
from agentkit.types import Nest
from agentkit.wrappers.reward_scale import find_scale


class InitialState(NamedTuple):
    """Holds what a run begins with.

    Attributes:
        experiment: the run's, with the step of the checkpoint that was meant; for ``config.json``.
        training: the training state; None for the agent's own.
        message: says where it is from; empty where `training` is None.
    """

    experiment: ExperimentConfig
    training: Nest | None = None
    message: str = ""


def find_initial_state(experiment: ExperimentConfig, parts: AgentParts, checks_alone: bool = False) -> InitialState:
    """Reads what `experiment.init_from` names, and checks that the agent can begin with it.

    Parameters, targets, optimisers and statistics are the source's. Counts are the new run's own: its steps and
    updates, and those of its learning rate's schedule. So are demonstrations, which may be as many as it has, and
    what its seed draws.

    Args:
        experiment: the new run's.
        parts: of its agent.
        checks_alone: nothing is computed, and the training state is None: a launcher leaves devices to its nodes.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is another agent's: names the first part that differs.
    """
    if experiment.init_from is None:
        return InitialState(experiment)
    found = _find(experiment)
    _check_agent(experiment, found)
    is_best = "best" in found.state
    whole = _find_whole(experiment, found.step) if is_best else found
    training = _read(experiment, whole, parts)
    _check_rewards(experiment, whole)
    if is_best and whole.step != found.step:
        training = _with_policy(parts.update, training, found)
    step = experiment.init_checkpoint if is_best else found.step
    message = f"Begins with the training state of {whole.path}."
    if is_best and whole.step != found.step:
        message = f"Begins with the policy of {found.path}, and with all else of {whole.path}."
    pinned = dataclasses.replace(experiment, init_checkpoint=step)
    if checks_alone:
        return InitialState(pinned, None, message)
    if any(map(_is_gail, jax.tree.leaves(training, is_leaf=_is_gail))):
        training = _with_demonstrations(training, _find_demonstrations(parts.update))
    return InitialState(pinned, _draw_anew(_restart_schedules(training), experiment.seed), message)


def reward_scale_of(experiment: ExperimentConfig) -> float:
    """Returns by how much the rewards were multiplied that the run in `experiment.init_from` has learned from."""
    if experiment.init_from is None:
        return 1.0
    found = _find(experiment)
    _check_agent(experiment, found)
    whole = _find_whole(experiment, found.step) if "best" in found.state else found
    return float(whole.state.get("reward_scale", 1.0))


def _find(experiment: ExperimentConfig) -> checkpoint.Checkpoint:
    assert experiment.init_from is not None, "its callers have seen it"
    try:
        if not pathlib.Path(experiment.init_from, "checkpoints").is_dir():
            read_record(experiment.init_from)  # Which says whether it is no run folder.
        return find_checkpoint(experiment.init_from, experiment.init_checkpoint)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"init_from (--init-from): {error}") from error


def _find_whole(experiment: ExperimentConfig, step: int) -> checkpoint.Checkpoint:
    """Returns the checkpoint with a whole training state beside the best policy: of its step, or the newest."""
    assert experiment.init_from is not None, "its callers have seen it"
    try:
        return find_checkpoint(experiment.init_from, step)
    except (ConfigError, CheckpointError):
        return _find(dataclasses.replace(experiment, init_checkpoint="newest"))


def _check_agent(experiment: ExperimentConfig, found: checkpoint.Checkpoint) -> None:
    if "policies" in found.state["experiment"]:
        raise ConfigError(
            f"init_from (--init-from): {experiment.init_from} is a run of several agents, and this one is of one. "
            "Begin with a run of one agent."
        )
    saved = found.state["experiment"].get("agent")
    now = describe_agent(experiment.agent, experiment.num_envs or 1)["agent"]
    if saved is not None and now is not None and saved != now:
        raise ConfigError(
            f"init_from (--init-from): {experiment.init_from} is a run of {saved}, and this one's agent is {now}. "
            f"Begin with {saved}, or with a run of {now}."
        )


def _check_rewards(experiment: ExperimentConfig, found: checkpoint.Checkpoint) -> None:
    scale = float(found.state.get("reward_scale", 1.0))
    if not math.isclose(scale, 1.0) and find_scale(experiment.wrappers) is None:
        raise ConfigError(
            f"init_from (--init-from): the run {experiment.init_from} learned from rewards times {scale:.6g} (by "
            "its agent's scale_rewards, or a wrapper), and its values are of these. Give this one the wrapper "
            f"functools.partial(RewardScale, scale={scale!r}) (--wrapper 'reward_scale(scale={scale!r})'), or "
            "scale=1.0 to do without."
        )


def _read(experiment: ExperimentConfig, found: checkpoint.Checkpoint, parts: AgentParts) -> Nest:
    """Returns the checkpoint's training state, if it is one of these shapes; without demonstrations."""
    whole = placeholders(parts.state)
    like = _with_demonstrations(whole, ())
    expected = nests.flatten_to_paths(like)
    own = nests.flatten_to_paths(whole).keys() - expected.keys()
    saved = {path: leaf for path, leaf in found.state["learner"]["state"].items() if path not in own}
    for path in dict.fromkeys([*expected, *saved]):
        ours, theirs = _say(expected.get(path)), _say(saved.get(path))
        if ours != theirs:
            raise ConfigError(
                f"init_from (--init-from): the training states differ at {path}: {theirs} in {found.path}, {ours} "
                f"here. {_say_settings(experiment, found)}"
            )
    return nests.restore_from_paths(like, saved, "The training state")


def _is_gail(node: Any) -> bool:
    return isinstance(node, gail.State)


def _with_demonstrations(training: Nest, shown: Nest) -> Nest:
    """Returns a training state, or its shapes, in which GAIL, if it is there, has these demonstrations."""
    return jax.tree.map(
        lambda node: node._replace(demonstrations=shown) if _is_gail(node) else node, training, is_leaf=_is_gail
    )


def _find_demonstrations(update: Update) -> Nest:
    """Returns the demonstrations that GAIL begins with; what else it begins with is compiled away."""

    def find(key: jax.Array) -> Nest:
        (state,) = filter(_is_gail, jax.tree.leaves(update.init(key), is_leaf=_is_gail))
        return state.demonstrations

    return jax.tree.map(np.asarray, jax.jit(find)(jax.random.PRNGKey(0)))


def _say(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{leaf.dtype.name}{list(leaf.shape)}"


def _say_settings(experiment: ExperimentConfig, found: checkpoint.Checkpoint) -> str:
    saved = found.state["experiment"].get("agent_config", {})
    now = describe_agent(experiment.agent, experiment.num_envs or 1)["agent_config"]
    differs = [f"{name}={saved[name]!r}" for name in now if name in saved and saved[name] != now[name]]
    return f"Of its settings there: {', '.join(differs)}." if differs else "Is it of this environment?"


def _with_policy(update: Update, training: Nest, found: checkpoint.Checkpoint) -> Nest:
    """Returns the training state with the parameters of the best policy, which are leaves of it."""
    params = read_params(update, found.state["best"]["policy"], f"The policy {found.path}")
    traced = jax.make_jaxpr(lambda state: update.variables(state)["policy"])(training).jaxpr
    leaves, structure = jax.tree.flatten(training)
    place_of = {id(variable): place for place, variable in enumerate(traced.invars)}
    for variable, leaf in zip(traced.outvars, jax.tree.leaves(params), strict=True):
        if id(variable) not in place_of:
            raise ConfigError(
                f"init_from (--init-from): {found.path} is only a policy, which this agent computes from more. Take "
                "the newest checkpoint, or one of a step."
            )
        leaves[place_of[id(variable)]] = leaf
    return jax.tree.unflatten(structure, leaves)


def _restart_schedules(training: Nest) -> Nest:
    """Returns the training state with learning rates' schedules at their start."""

    def is_schedule(node: Any) -> bool:  # Of optax's states those of a schedule hold a count and nothing else.
        return getattr(node, "_fields", ()) == ("count",) and type(node).__module__.startswith("optax.")

    return jax.tree.map(
        lambda node: node._replace(count=np.zeros_like(node.count)) if is_schedule(node) else node,
        training,
        is_leaf=is_schedule,
    )


def _draw_anew(training: Nest, seed: int) -> Nest:
    """Returns the training state with the seed in its keys: else runs of all seeds that go on from it draw alike."""

    def draw(path: tuple[Any, ...], leaf: Any) -> Any:
        name = getattr(path[-1], "name", getattr(path[-1], "key", None)) if path else None
        if name not in ("key", "rng", "rng_key") or (leaf.dtype, leaf.shape) != (np.uint32, (2,)):
            return leaf
        return np.random.SeedSequence([*leaf.tolist(), seed]).generate_state(2)

    return jax.tree_util.tree_map_with_path(draw, training)
