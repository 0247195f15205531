"""Refuses, before anything starts, what the training on the device cannot do."""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.adders.sequence import check_period
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.callbacks.base import Callback, has
from agentkit.counting import MOST_STEPS
from agentkit.envs import given
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.multi_agent_host import HostMultiAgentEnvironment
from agentkit.envs.jax.step_check import check_steps
from agentkit.envs.jax.turn_host import HostTurnEnvironment
from agentkit.envs.multi_agent.preparing import PreparedEnvironment
from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.loop import Held
from agentkit.experiment.on_device.replay.learning import MOST_PARTS, find_rate
from agentkit.experiment.on_device.replay.store import stores_of
from agentkit.experiment.on_device.replay.sum_tree import least_capacity
from agentkit.experiment.on_device.segments import divide_each_other
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import AgentId, Nest
from agentkit.wrappers.canonical_actions import CanonicalActions
from agentkit.wrappers.flatten_actions import FlattenActions
from agentkit.wrappers.single_precision import SinglePrecision

STEP_LIMIT = MOST_STEPS + 1
"""Steps are counted below this."""

_NO_WRAPPERS = "they are Python, and the loop calls none; change the environment itself"

# What every environment in JAX is stepped by on the host, and what `envs.make` puts around it for any agent.
_ADAPTERS = (DmEnvironment, HostMultiAgentEnvironment, HostTurnEnvironment)
_LAYERS = (
    ResumableEnvironment,
    CanonicalActions,
    FlattenActions,
    SinglePrecision,
    ResumableMultiAgentEnvironment,
    PreparedEnvironment,
)

# Settings of the host's loop, each with its option, the value that asks for nothing, and why it has no place here.
_HOST_ONLY = (
    ("workers", "--workers", 0, "environments run in the compiled loop, and in no process"),
    ("ready", "--ready", None, "all environments step together"),
    ("replay", "--replay", "in_process", "experience stays on the device"),
    ("data", "--data", None, "its replay has the run's own experience alone"),
    ("columns", "--column", (), "nothing of Python's is called at a step"),
    ("wrappers", "--wrapper", (), _NO_WRAPPERS),
)


class MemoryPart(NamedTuple):
    """Holds what a part of a run takes of the memory of the first device, and how it takes less."""

    name: str
    num_bytes: int
    remedy: str


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
            raise refused(f"{name} ({option})", f"{why}. Leave it out")
    if is_profiled:
        raise refused("profile (--profile)", "a step has no parts that can be timed apart. Leave it out")
    check_precision()
    if experiment.num_steps >= STEP_LIMIT:
        raise refused(f"num_steps={experiment.num_steps:,}", f"steps are counted below {STEP_LIMIT:,}. Take fewer")
    check_agent(experiment.agent, experiment.num_envs or 1, experiment.num_steps)
    check_callbacks(experiment.callbacks)


def check_precision() -> None:
    """Refuses JAX's double precision, in which numbers of Python's and of environments do not fit the specs.

    Raises:
        ConfigError: it is on.
    """
    if jnp.result_type(float) == np.float64:
        raise refused("JAX_ENABLE_X64", "the loop is of single precision, as the specs of agents are. Unset it")


def check_last_round(num_steps: int, rows: int) -> None:
    """Refuses steps of which the last round could count more than int32 holds.

    Args:
        num_steps: of the run.
        rows: of a round, see `rounds.Rounds.rows`.

    Raises:
        ConfigError: there are too many.
    """
    if num_steps + rows > STEP_LIMIT:
        raise refused(
            f"num_steps={num_steps:,} with rounds of {rows:,}",
            f"the last round goes beyond the end, and steps are counted below {STEP_LIMIT:,}. Take fewer",
        )


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuses callbacks that see steps, or episodes of the training.

    Raises:
        ConfigError: names the first, and what to do.
    """
    for callback in callbacks:
        for method in ("wrap", "on_step", "on_episode"):
            if has(callback, method):
                raise refused(
                    f"the callback {type(callback).__name__} with {method}",
                    "nothing of Python's is called at a step or at an episode's end. Leave it out, or use "
                    "on_learner_log or on_evaluation_episode",
                )


def check_devices(devices: int | None, number: int, what: str) -> None:
    """Refuses devices that cannot share a run's environments, or a population's runs.

    Args:
        devices: as in `ExperimentConfig`.
        number: of what they share.
        what: it is, for messages.

    Raises:
        ConfigError: some would have more of it than others.
    """
    if number % (devices or 1):
        raise refused(f"devices={devices} and {number} {what}", "each device takes as many. Change one of the two")


def find_environment(experiment: ExperimentConfig) -> JaxEnvironment:
    """Returns the experiment's environment as the compiled loop steps it.

    Raises:
        ConfigError: it is none in JAX, has wrappers around it, or its actions would have to be changed for an agent.
        SpecError: it gives something else than its specs say.
    """
    with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
        name = given.name_of(experiment.environment)
        found = find_inside(environment, name)
        if found is None:
            raise refused(
                f"the environment {name}",
                "it is not written in JAX. Take 'jax:cartpole', 'jax:catch', 'jax:memory_chain' or 'jax:point_mass', "
                "one of gymnax's ('gymnax:Breakout-MinAtar'), or a class of your own, derived from "
                "agentkit.envs.jax.base.JaxEnvironment",
            )
        refuse_changed(name, make_environment_spec(found), make_environment_spec(environment))
    check_steps(found, name)
    return found


def find_inside(environment: Any, name: str, kind: type = JaxEnvironment) -> Any:
    """Returns the environment in JAX that an ordinary one is; None where it is none.

    Args:
        environment: as it was made for an agent, or for several.
        name: of it, for messages.
        kind: that it must be of.

    Raises:
        ConfigError: there are wrappers around one, which a loop that steps what is inside would drop.
    """
    inner = environment
    while isinstance(inner, _LAYERS):
        inner = inner.environment
    found = getattr(inner, "jax_environment", None)
    if not isinstance(found, kind):
        return None
    if not isinstance(inner, _ADAPTERS):  # Wrappers pass attributes on.
        raise refused(f"wrappers ({type(inner).__name__} in the environment {name})", f"{_NO_WRAPPERS}. Leave it out")
    return found


def refuse_changed(name: str, own: EnvironmentSpec, prepared: EnvironmentSpec, agent_id: AgentId | None = None) -> None:
    """Refuses an environment that would have to be changed for an agent, which no wrapper can do here.

    Args:
        name: of the environment.
        own: its spec.
        prepared: what it is for an agent, in every other mode.
        agent_id: whose specs these are; None where there is one agent.

    Raises:
        ConfigError: says which parts differ.
    """
    parts = " and ".join(part for part in own._fields if getattr(own, part) != getattr(prepared, part))
    if parts:
        raise refused(
            f"the environment {name}",
            f"{f'its {parts}' if agent_id is None else f'the {parts} of {agent_id!r}'} are not what agents take, and "
            "no wrapper can change them here. Give it actions in [-1, 1] (or choices), of one axis, and single "
            "precision",
        )


def needed_experience(agent: Agent[Any], num_steps: int) -> Segments | Transitions | Sequences:
    """Returns the agent's experience, with no more room for items than a run can fill.

    Args:
        agent: see `check_agent`.
        num_steps: of all environments, at the most.
    """
    experience: Any = agent.experience
    if isinstance(experience, Segments):
        return experience
    config, needed = experience.config, _most_items(experience, num_steps)
    if config.prioritized:  # A longer run, which may go on from this one's checkpoint, has as many levels then.
        needed = max(needed, least_capacity(config.replay_size))
    return dataclasses.replace(
        experience, config=dataclasses.replace(config, replay_size=min(config.replay_size, needed))
    )


def check_memory(held: Held, num_runs: int = 1, num_devices: int = 1) -> str | None:
    """Returns a sentence on what the replay takes of the device's memory; None where there is no replay.

    Args:
        held: shapes and dtypes, of all runs.
        num_runs: that train side by side.
        num_devices: that share the run, or the runs.

    Raises:
        ConfigError: there is less than all parts need; what updates compute with is not counted.
    """
    parts, there = memory_parts(held, num_runs, num_devices), _memory_of_a_device(num_devices)
    needed = sum(part.num_bytes for part in parts)
    if needed > there:
        parts.sort(key=lambda part: part.num_bytes, reverse=True)
        listed = ", ".join(f"{part.name} {_gb(part.num_bytes)}" for part in parts if part.num_bytes > needed / 1_000)
        fewer = ", or train fewer seeds together" if num_runs > 1 else ""
        raise ConfigError(
            f"The training on the device needs {_gb(needed)} GB of memory, and the device has {_gb(there)}: {listed}. "
            f"{parts[0].remedy}{fewer}."
        )
    if not (num_items := _num_items(held, num_runs, num_devices)):
        return None
    replay = parts[0].num_bytes
    return (
        f"The replay on the device has room for {num_items:,} items of {replay // num_items:,} bytes, {_gb(replay)} GB "
        f"of {_gb(there)}; a checkpoint has those that are in."
    )


def memory_parts(held: Held, num_runs: int = 1, num_devices: int = 1) -> list[MemoryPart]:
    """Returns what each part takes of the memory of a device, the replay first.

    Runs side by side need more for a while: where one is saved or restored, its state is copied. And each has the
    training state that came out of the last chunk beside that of all, on the first device. See `check_memory`.
    """
    state, scratch = held.state, held.scratch
    num_items, training = _num_items(held, num_runs, num_devices), _size(held.training)
    of_run = num_devices if _is_population(held) else 1  # A run that several devices share has this on each of them.
    environments = state.acting._replace(opponents=())
    fewer_environments = "Take fewer environments (num_envs)"
    smaller_segments = f"{fewer_environments} or shorter segments (segment_length)"
    smaller_replay = "Lower replay_size or store smaller observations"
    parts = [
        MemoryPart(f"the replay of {num_items:,} items", _size(state.store) // of_run, smaller_replay),
        MemoryPart("the segments of a round", _size(scratch.segments) // num_devices, smaller_segments),
        MemoryPart("the environments", _size(environments) // num_devices, fewer_environments),
        MemoryPart("the pool of resets", _size(scratch.resets) // of_run, "Lower reset_pool"),
        MemoryPart("the pools of opponents", _size(state.acting.opponents) // of_run, "Lower the size of the Pool"),
        MemoryPart("the training state", training // of_run, "Take smaller networks"),
    ]
    if _is_population(held):
        parts.append(MemoryPart("a copy of each run's training state", training, "Take smaller networks"))
        parts.append(MemoryPart("a copy of one run while it is saved", _size(state) // num_runs, smaller_replay))
    return parts


def _is_population(held: Held) -> bool:
    return bool(held.state.acting.num_steps.ndim)  # Runs side by side have an axis of their own.


def _num_items(held: Held, num_runs: int, num_devices: int) -> int:
    """Returns for how many items the replays on a device have room."""
    of_one = sum(store.ring.capacity for store in stores_of(held.state.store).values())
    return of_one * num_runs // num_devices if _is_population(held) else of_one


def _memory_of_a_device(num_devices: int) -> int:
    """Returns the bytes that a device has; the devices of a CPU share those of the machine."""
    if stats := jax.local_devices()[0].memory_stats():
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // num_devices


def _size(nest: Nest) -> int:
    """Returns the bytes of a nest's arrays, by their shapes and dtypes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(nest))


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f}"


def _most_items(experience: Transitions | Sequences, num_steps: int) -> int:
    """Returns how many items so many steps give at most: short episodes give twice as many transitions, or rows."""
    if isinstance(experience, Sequences):
        return -(-2 * num_steps // experience.config.sequence_period)
    return num_steps if experience.config.n_step == 1 else 2 * num_steps


def check_agent(agent: Agent[Any], num_envs: int, num_steps: int) -> None:
    """Refuses an agent that acts, learns or keeps experience as the compiled loop cannot.

    Args:
        agent: that is to learn.
        num_envs: environments that it acts in.
        num_steps: of the run, in all of them.

    Raises:
        ConfigError: says why, and what to do.
    """
    for box in ("make_actor", "make_learner"):
        if getattr(agent, box) is not None:
            raise refused(f"an agent's own {box}", "the loop calls nothing of Python's. Give a policy and an update")
    experience: Any = agent.experience
    if not isinstance(experience, Segments | Transitions | Sequences):
        raise refused(
            "the agent",
            f"it keeps experience as {type(experience).__name__}. Agents that learn from segments, transitions or "
            "sequences run there, such as ppo, dqn and r2d2",
        )
    if experience.reach is not None:
        raise refused("views (--view)", "no rows from before an item's are kept there. Leave them out")
    if isinstance(experience, Segments):
        _check_segments(experience, num_envs)
    else:
        _check_replay(experience, num_envs, num_steps)


def _check_segments(experience: Segments, num_envs: int) -> None:
    if experience.completes_episodes:
        raise refused("batch_mode='complete_episodes'", "segments have one length. Take 'truncate_episodes'")
    batch_size = experience.batch_plan.batch_size
    if not divide_each_other(num_envs, batch_size):
        raise refused(
            f"num_envs={num_envs} with batch_size={batch_size}", "one must be a multiple of the other. Change one"
        )


def _check_replay(experience: Transitions | Sequences, num_envs: int, num_steps: int) -> None:
    config = experience.config
    if isinstance(experience, Sequences):
        check_period(experience.config.sequence_length + 1, experience.config.sequence_period)
    at_once = num_envs * (2 if isinstance(experience, Sequences) else config.n_step + 1)
    if config.replay_size < at_once:
        raise refused(
            f"replay_size={config.replay_size} with num_envs={num_envs}",
            f"one step may write {at_once} items. Raise replay_size",
        )
    rate = find_rate(experience)
    per_step = rate / (experience.config.sequence_period if isinstance(experience, Sequences) else 1)
    if abs(per_step / fractions.Fraction(config.updates_per_step) - 1) > 1e-9:
        raise refused(
            f"updates_per_step={config.updates_per_step}",
            "updates are counted in whole numbers. Take a fraction whose denominator is at most "
            f"{MOST_PARTS:,}, such as {max(per_step, fractions.Fraction(1, MOST_PARTS))}",
        )
    most = _most_items(experience, num_steps)
    parts = rate.numerator * rate.denominator * config.updates_per_call
    if max(fractions.Fraction(1), rate) * most >= STEP_LIMIT or parts >= STEP_LIMIT:
        raise refused(
            f"num_steps={num_steps:,} with updates_per_step={config.updates_per_step:g}",
            f"items and updates are counted below {STEP_LIMIT:,}. Take fewer",
        )


def refused(what: str, why: str) -> ConfigError:
    """Returns the error of a setting that the compiled loop does not have."""
    return ConfigError(f"on_device (--on-device) does not go with {what}: {why}.")
