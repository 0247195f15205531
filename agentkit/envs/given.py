"""Environments that are handed in, not named: classes, instances, and functions that return one.

Gymnasium's, dm_env's and dm_control's kinds and environments in JAX are taken, told apart by what they are. No
simulator is imported here: one whose environment was handed in is loaded already.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.envs import prefixes
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.wrapping import NARROWED, Wrapper, prepare, wrap, wrap_inside
from agentkit.errors import ConfigError, unknown_name
from agentkit.importing import import_callable


def find(name: str, of_several_agents: bool = False) -> Any:
    """Returns what an environment's name stands for: a class or function for ``MODULE:NAME``, else the name itself.

    The module is imported: ask only for names that the user gave, never on the word of a run folder.

    Args:
        name: which.
        of_several_agents: whether what ``MODULE:NAME`` stands for may be of several agents.

    Raises:
        ConfigError: the module cannot be imported, or has nothing there that can be called.
        UnknownNameError: the module has no such name; proposes the nearest one.
    """
    module, colon, path = name.partition(":")
    prefixes.refuse_several_agents(name)
    if not of_several_agents:  # In the packages' modules there is none of one agent either.
        prefixes.refuse_several_agents(f"{module.partition('.')[0]}:{path}")
    if not colon or not path or module in prefixes.prefixes() or not _is_module(module):
        return name
    return import_callable(name, "environment", "class or function")


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # A parent that is not there, or the script that was started.
        return False


def is_instance(environment: object) -> bool:
    """Returns whether this is an environment already, and no class or function that makes one."""
    return not isinstance(environment, str | type) and hasattr(environment, "reset") and hasattr(environment, "step")


def check(environment: Any, settings: Mapping[str, Any]) -> None:
    """Refuses what is neither a name nor a thing that makes an environment, and arguments of one that is made already.

    Raises:
        ConfigError: it says what to hand in.
    """
    if not (isinstance(environment, str) or callable(environment) or is_instance(environment)):
        raise ConfigError(
            f"environment: expected a name such as gymnasium:CartPole-v1, a class, a function that returns an "
            f"environment, or an instance; found {environment!r:.80}."
        )
    if settings and is_instance(environment):
        raise ConfigError(
            f"environment_settings: {', '.join(settings)} cannot be given to an instance of {name_of(environment)}, "
            "which is made already. Hand in its class, or make the instance with them."
        )


def make(
    environment: Any,
    seed: int,
    settings: Mapping[str, Any],
    *,
    wrappers: Sequence[Wrapper] = (),
    num_envs: int | None = None,
    shared: bool = True,
    single: bool = False,
) -> Any:
    """Makes an environment from what was handed in, ready for an agent.

    A vector environment of gymnasium's is a batch already (`envs.gymnasium_vector.VectorEnvironment`).

    Args:
        environment: a class, or a function, which is given the seed if it has a parameter called ``seed`` (a lambda
            of one parameter is given it, too), and `num_envs`, or 1, if it has one called ``num_envs``; or an instance,
            which is copied.
        seed: of the environment.
        settings: arguments by name.
        wrappers: applied in this order around each single environment, or around a vector environment.
        num_envs: a batch of this many; None for a single one, or for all of a vector environment.
        single: whether a vector environment is to be shown as its first one.
        shared: whether the run needs more than this one, so that an instance that cannot be copied is refused.

    Raises:
        ConfigError: no environment comes of it, or arguments are missing or unknown.
        SpecError: it is a batch of environments of another kind than gymnasium's.
    """
    from agentkit.envs.resumable import episode_seed

    first_seed = seed if num_envs is None else episode_seed(seed, 0)
    made = _given(environment, first_seed, settings, shared, num_envs)
    if _is_vector(made):
        with contextlib.ExitStack() as stack:  # It may have processes.
            stack.callback(made.close)
            batch = _as_batch(made, seed, num_envs, single, name_of(environment))
            batch, wrappers = wrap_inside(batch, wrappers)  # Refuses gymnasium's own.
            batch = _wrap_resumable(batch, seed, wrappers)
            stack.pop_all()
        return batch
    if num_envs is None:
        return _single(made, seed, name_of(environment), wrappers)
    return make_members(environment, seed, range(num_envs), settings, wrappers=wrappers, shared=shared, first=made)


def make_members(
    environment: Any,
    seed: int,
    members: range,
    settings: Mapping[str, Any],
    *,
    wrappers: Sequence[Wrapper] = (),
    shared: bool = True,
    first: Any = None,
) -> Any:
    """Makes some of the environments of a batch, as a batch of their own; equal to those of ``make(..., num_envs=N)``.

    Args:
        environment: see `make`.
        seed: of the whole batch.
        members: their numbers in it, without a gap.
        settings: see `make`.
        wrappers: see `make`.
        shared: see `make`.
        first: what came of the first one, where that is known already.

    Raises:
        ConfigError: one is a batch itself.
    """
    from agentkit.envs.batched import BatchedEnvironment
    from agentkit.envs.resumable import episode_seed

    with contextlib.ExitStack() as stack:  # Closes those there are if another cannot be made.
        several = []
        for i in members:
            member_seed = episode_seed(seed, i)
            if i > members.start or first is None:
                first = _given(environment, member_seed, settings, shared, None)
            if _is_vector(first):
                first.close()
                raise ConfigError(
                    f"workers, ready: {name_of(environment)} is a vector environment, which steps its environments "
                    "itself. Leave --workers and --ready out."
                )
            several.append(_single(first, member_seed, name_of(environment), wrappers))
            stack.callback(several[-1].close)
        batch = BatchedEnvironment(several, members.start)
        stack.pop_all()
    return batch


def name_of(environment: object) -> str:
    """Returns what to call an environment in messages."""
    if isinstance(environment, str):
        return environment
    thing = type(environment) if is_instance(environment) else environment
    return str(getattr(thing, "__qualname__", None) or getattr(getattr(thing, "func", None), "__qualname__", thing))


def _given(environment: Any, seed: int, settings: Mapping[str, Any], shared: bool, num_envs: int | None) -> Any:
    """Returns what comes of an environment that was handed in, as it is."""
    if isinstance(environment, JaxEnvironment):
        return environment  # It keeps nothing.
    if is_instance(environment):
        return copied(environment, shared, "; or leave out num_envs and set evaluation_period=0")
    return called(environment, seed, settings, num_envs)


def _is_vector(made: Any) -> bool:
    if "gymnasium" not in sys.modules:
        return False
    from agentkit.envs.gymnasium import is_vector_environment

    return is_vector_environment(made)


def _as_batch(made: Any, seed: int, num_envs: int | None, single: bool, name: str) -> dm_env.Environment:
    """Gives a vector environment agentkit's convention of batches, ready for an agent."""
    from agentkit.envs.gymnasium_vector import FirstOfVector, VectorEnvironment

    batch = VectorEnvironment(made, seed)
    if num_envs not in (None, batch.num_envs):
        raise ConfigError(
            f"num_envs: expected the {batch.num_envs} environments that the vector environment {name} has, found "
            f"{num_envs}. Leave --num-envs out, or give the function a parameter num_envs."
        )
    return prepare(FirstOfVector(batch) if single else batch, concatenate=False)


def _single(made: Any, seed: int, name: str, wrappers: Sequence[Wrapper]) -> Any:
    """Makes a single environment ready for an agent, with its wrappers around it, gymnasium's own inside."""
    made, wrappers = wrap_inside(made, wrappers)
    return _wrap_resumable(_as_dm_env(made, seed, name), seed, wrappers)


def _wrap_resumable(made: Any, seed: int, wrappers: Sequence[Wrapper]) -> Any:
    """Puts the wrappers around an environment, and outermost what makes it resumable, if it can be."""
    from agentkit.envs.resumable import ResumableEnvironment

    made = wrap(made, wrappers)
    if hasattr(made, "reseed") and not specs.is_batched(made) and not getattr(made, "resumable", False):
        return ResumableEnvironment(made, seed)
    return made


def copied(instance: Any, shared: bool = True, advice: str = "") -> Any:
    """Returns a copy of an environment, or itself where it cannot be copied and none other is needed.

    Args:
        instance: the environment.
        shared: whether the run needs more than one.
        advice: how it could need one only, for the error.

    Raises:
        ConfigError: it cannot be copied, and is `shared`.
    """
    try:
        return copy.deepcopy(instance)
    except Exception as error:  # Whatever its own class raises.
        if not shared:
            return instance
        raise ConfigError(
            f"The environment is an instance of {name_of(instance)} that cannot be copied ({error!s:.100}), and the "
            "run needs more than one: evaluation has its own, and so has each of num_envs. Hand in the class, or a "
            f"function that returns a new one{advice}."
        ) from error


def called(make_one: Callable[..., Any], seed: int, settings: Mapping[str, Any], num_envs: int | None = None) -> Any:
    """Returns what a class or a function makes of the settings, and of seed and `num_envs` where it takes them.

    Raises:
        ConfigError: arguments are missing.
        UnknownNameError: it takes no such argument.
    """
    try:
        parameters = list(inspect.signature(make_one).parameters.values())
    except (ValueError, TypeError):  # Some classes written in C have none.
        return make_one(**settings)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in settings.keys() - names:
            raise unknown_name(f"argument of the environment {name_of(make_one)}", name, names - {"seed", "num_envs"})
    if "seed" in names:
        settings = {"seed": seed, **settings}
    if "num_envs" in names:
        settings = {"num_envs": num_envs or 1, **settings}
    open_ones = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in settings]
    missing = [p for p in open_ones if p.default is p.empty]
    args: tuple[int, ...] = ()
    if not isinstance(make_one, type) and "seed" not in names and parameters:
        first = parameters[0]  # A function's own: ``lambda s: ...`` or ``def make(*args)``.
        if (first in missing and _is_for_seeds(make_one, first.name)) or first.kind is first.VAR_POSITIONAL:
            args, missing = (seed,), [p for p in missing if p is not first]
    if lacking := ", ".join(sorted(getattr(make_one, "__abstractmethods__", ()))):
        raise ConfigError(f"The environment {name_of(make_one)} has no {lacking}, which its base class asks for.")
    if missing:
        raise ConfigError(
            f"The environment {name_of(make_one)} needs {', '.join(p.name for p in missing)}: give --env-set "
            f"{missing[0].name}=VALUE, in Python environment_settings={{{missing[0].name!r}: ...}}. A "
            "parameter called seed is given the seed."
        )
    return make_one(*args, **settings)


def _is_for_seeds(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function's first parameter takes the seed; one called ``target`` must not get it unseen."""
    is_lambda = getattr(function, "__name__", "") == "<lambda>"
    return is_lambda or "seed" in name or name.startswith("_") or len(name) == 1


def _as_dm_env(made: Any, seed: int, name: str) -> dm_env.Environment:
    """Gives gymnasium's and dm_control's environments dm_env's interface, and makes each ready for an agent."""
    families = {cls.__module__.partition(".")[0] for cls in type(made).__mro__}
    control = sys.modules.get("dm_control.rl.control")
    if isinstance(made, JaxMultiAgentEnvironment):
        raise prefixes.several_agents(name)
    if isinstance(made, JaxEnvironment):
        from agentkit.envs.jax.dm_environment import DmEnvironment

        return prepare(DmEnvironment(made, seed), concatenate=False)
    if "gymnasium" in families:
        from agentkit.envs.gymnasium import GymnasiumEnvironment

        return prepare(GymnasiumEnvironment(made, seed), concatenate=False)
    if control is not None and isinstance(made, control.Environment):
        from agentkit.envs.dm_control import DMControlEnvironment

        return prepare(DMControlEnvironment(made), concatenate=True)
    if "gym" in families:
        raise ConfigError(
            f"The environment {name} is of the package gym, which gymnasium replaced. Derive it from gymnasium.Env, "
            "or convert it with shimmy."
        )
    for family in families - {"agent_ids"}:  # That prefix is of no package: the module is the user's own.
        prefixes.refuse_several_agents(family)
    specs.check_is_environment(made)
    return made if _is_prepared(made) else prepare(made, concatenate=False)


def _is_prepared(environment: dm_env.Environment) -> bool:
    """Returns whether no layer is needed; an environment that is ready stays as it is, and as quick."""
    from agentkit.wrappers.canonical_actions import is_bounded_continuous

    actions = tree.flatten(environment.action_spec())
    everything = (*tree.flatten(environment.observation_spec()), *actions)
    if any(specs.is_spec(leaf) and leaf.dtype in NARROWED for leaf in everything):
        return False
    bounded = [leaf for leaf in actions if specs.is_spec(leaf) and is_bounded_continuous(leaf)]
    return not any(
        np.all(leaf.minimum <= leaf.maximum)
        and (len(leaf.shape) != 1 or np.any(leaf.minimum != -1) or np.any(leaf.maximum != 1))
        for leaf in bounded  # Bounds the wrong way round are refused later, by name.
    )
