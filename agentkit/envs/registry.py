"""Environments by name."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, RawFramesWarning, unknown_name

if typing.TYPE_CHECKING:
    from agentkit.envs.members import Members

Factory = Callable[..., dm_env.Environment]
"""``factory(name, seed, **kwargs) -> environment``; `name` is what follows the prefix."""

Wrapper = Callable[[dm_env.Environment], dm_env.Environment]

_OWN = {
    "bandit": "bandit.Bandit",
    "bit_flip": "reach_goal.BitFlip",
    "catch": "catch.Catch",
    "deep_sea": "deep_sea.DeepSea",
    "memory_chain": "memory_chain.MemoryChain",
    "point_mass": "point_mass.PointMass",
}
SIMULATORS = {
    "atari": "Breakout",
    "bsuite": "catch/0",
    "dm_control": "cheetah/run",
    "dm_control_pixels": "cheetah/run",
    "envpool": "HalfCheetah-v4",
    "gymnasium": "HalfCheetah-v5",
    "gymnasium_vector": "CartPole-v1",
    "metaworld": "reach",
    "minatar": "Breakout",
    "minigrid": "DoorKey-5x5",
    "robotics": "PointMaze_UMaze",
}
"""Prefixes of simulators, each with the name of one of its environments."""
GYMNASIUM_PREFIXES = ("gymnasium", "gymnasium_vector", "atari", "metaworld", "minigrid", "robotics")
"""Prefixes of environments that gymnasium makes, and that draw with ``render_mode="rgb_array"``."""

_OF_SEVERAL_AGENTS = ("pettingzoo",)

_registered: dict[str, Factory] = {}


def make(
    name: Any,
    /,
    seed: int = 0,
    *,
    raw: bool = False,
    num_envs: int | None = None,
    evaluation: bool = False,
    workers: int = 0,
    ready: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    **kwargs: Any,
) -> Any:
    """Makes an environment, ready for an agent.

    Args:
        name: ``prefix:name``, e.g. ``gymnasium:HalfCheetah-v5``, ``gymnasium_vector:CartPole-v1``,
            ``dm_control:cheetah/run``, ``bsuite:catch/0``, ``envpool:HalfCheetah-v4``, ``agentkit:catch``, or by a
            standard protocol ``atari:Breakout``, ``minatar:Breakout``, ``minigrid:DoorKey-5x5``,
            ``robotics:PointMaze_UMaze``, ``metaworld:reach``, ``dm_control_pixels:cheetah/run``; see `available`. A
            class, a function that makes an environment, and an instance are taken, too, and so is a
            `gymnasium.vector.VectorEnv`: see `agentkit.envs.given`.
        seed: seeds everything; the same seed gives the same episodes for the same actions.
        raw: True gives the simulator as it is, behind dm_env's interface only. False (the default) gives single
            precision, bounded continuous actions in [-1, 1] (clipped), dm_control's and EnvPool's dict observations as
            one vector, and `save`/`restore` in mid-episode (`ResumableEnvironment`) where it can be reseeded.
        num_envs: a batch of this many environments (`BatchedEnvironment`, or EnvPool's or gymnasium's own); None for a
            single one. EnvPool is always a batch, of 1 by default; so is a vector environment that is handed in.
        evaluation: whether the episodes are to be judged by; told to a factory with a parameter of this name, as
            Atari's, which clips rewards in training only.
        workers: processes that the `num_envs` environments are shared out to (`envs.workers.WorkerBatchedEnvironment`);
            0 for this one.
        ready: of environments in workers, or of EnvPool's, how many are acted for at a time, whichever are ready first;
            None for all.
        wrappers: applied in this order around each single environment, inside the resumable layer.
        **kwargs: go to the environment (e.g. ``render_mode="rgb_array"``, ``size=10``).

    Returns:
        A dm_env environment; a batch has `num_envs` and leaves ``[N, ...]``.

    Raises:
        UnknownNameError: for an unknown prefix or name, with the nearest match.
        ConfigError: for impossible settings.
        MissingExtraError: if the simulator is not installed.
    """
    prefix = rest = ""
    if isinstance(name, str):
        prefix, rest = _split(name)  # An unknown one is refused before anything starts.
    else:
        from agentkit.envs import given

        given.check(name, kwargs)
    _check_numbers(seed, num_envs)
    if prefix == "envpool" and not workers:
        return _make_envpool(rest, seed, raw, num_envs or 1, ready, wrappers, kwargs)
    if workers or ready is not None:
        from agentkit.envs.members import Members

        members = Members(name, seed, raw=raw, wrappers=wrappers, settings=kwargs, evaluation=evaluation)
        return _in_workers(members, num_envs, workers, ready)
    if not isinstance(name, str):
        return given.make(name, seed, kwargs, wrappers=wrappers, num_envs=num_envs, single=evaluation)
    if prefix == "gymnasium_vector" and num_envs is not None:
        vector = _factory(prefix)(rest, seed, num_envs=num_envs, **kwargs)
        return _fit_out(vector, name=name, raw=raw, wrappers=wrappers)
    return _make_named(name, seed, num_envs, raw=raw, wrappers=wrappers, settings=kwargs, evaluation=evaluation)


def make_members(
    name: str,
    seed: int,
    members: range,
    *,
    raw: bool,
    wrappers: Sequence[Wrapper],
    settings: Mapping[str, Any],
    evaluation: bool = False,
) -> Any:
    """Makes some of the environments of a batch, as a batch of their own; equal to those of ``make(..., num_envs=N)``.

    Args:
        name: as for `make`; no simulator's own batch.
        seed: of the whole batch.
        members: their numbers in it, without a gap.
        raw: see `make`.
        wrappers: see `make`.
        settings: arguments of the environment.
        evaluation: see `make`.
    """
    from agentkit.envs.batched import BatchedEnvironment
    from agentkit.envs.resumable import episode_seed

    prefix, rest = _split(name)
    factory = _factory_for(prefix, evaluation)
    fit_out = functools.partial(_fit_out, name=f"{prefix}:{rest}", raw=raw, wrappers=wrappers)
    # What every environment needs costs less around all of them; a user's wrappers are for a single one.
    each = fit_out if wrappers else _leave_as_it_is
    made = [_make_one(factory, prefix, rest, episode_seed(seed, i), raw, each, dict(settings)) for i in members]
    batch = BatchedEnvironment(made, members.start)
    return batch if wrappers else fit_out(batch)


def _make_named(
    name: str,
    seed: int,
    num_envs: int | None,
    *,
    raw: bool,
    wrappers: Sequence[Wrapper],
    settings: dict[str, Any],
    evaluation: bool,
) -> Any:
    if num_envs is not None:
        numbers = range(num_envs)
        return make_members(name, seed, numbers, raw=raw, wrappers=wrappers, settings=settings, evaluation=evaluation)
    prefix, rest = _split(name)
    fit_out = functools.partial(_fit_out, name=f"{prefix}:{rest}", raw=raw, wrappers=wrappers)
    return _make_one(_factory_for(prefix, evaluation), prefix, rest, seed, raw, fit_out, settings)


def _check_numbers(seed: int, num_envs: int | None) -> None:
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed: expected 0 <= seed < 2**31, which every simulator takes; found {seed}.")
    if num_envs is not None and num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, or None for a single one; found {num_envs}.")


def _factory_for(prefix: str, evaluation: bool) -> Factory:
    factory = _factory(prefix)
    if evaluation and "evaluation" in inspect.signature(factory).parameters:
        return functools.partial(factory, evaluation=True)
    return factory


def _fit_out(environment: Any, *, name: str, raw: bool, wrappers: Sequence[Wrapper]) -> Any:
    from agentkit.envs.wrapping import wrap, wrap_inside

    environment, wrappers = wrap_inside(environment, wrappers)
    if not raw:
        environment = prepare(environment, concatenate=name.startswith("dm_control:"))
    environment = wrap(environment, wrappers)
    if not raw:
        _warn_of_raw_frames(name, environment.observation_spec())
    return environment


def _in_workers(members: Members, num_envs: int | None, workers: int, ready: int | None) -> Any:
    from agentkit.envs.workers import WorkerBatchedEnvironment, check_workers

    num_envs = check_workers(members.name, num_envs, workers, ready)
    return WorkerBatchedEnvironment(members, num_envs, workers, ready)


def register(prefix: str, factory: Factory) -> None:
    """Makes ``make(f"{prefix}:{name}", seed, **kwargs)`` call ``factory(name, seed, **kwargs)``.

    Raises:
        ConfigError: if the prefix is taken or contains a colon.
    """
    if ":" in prefix or not prefix:
        raise ConfigError(f"A prefix is a word without a colon, found {prefix!r}.")
    if prefix in _registered or prefix in SIMULATORS or prefix == "agentkit":
        raise ConfigError(f"The environment prefix {prefix!r} is taken. Choose another one.")
    _registered[prefix] = factory


def registered(name: str) -> Factory | None:
    """Returns the function that `register` was given for a name's prefix; None for a prefix that is agentkit's own."""
    return _registered.get(name.partition(":")[0])


def own_module(name: str) -> str:
    """Returns the file of ``agentkit/envs`` that has an environment of agentkit's own, without its suffix."""
    return _OWN[name].partition(".")[0]


def settings_of(name: str) -> dict[str, Any] | None:
    """Returns the arguments that agentkit's own environment takes, with their types; None for another's environment."""
    prefix, rest = _split(name)
    if prefix != "agentkit" or rest not in _OWN:
        return None
    cls = _own_class(rest)
    hints = typing.get_type_hints(cls.__init__)
    return {key: hints[key] for key in inspect.signature(cls).parameters if key != "seed"}


def available() -> list[str]:
    """Returns agentkit's own environments by their full names, then every other prefix as ``prefix:``."""
    return [f"agentkit:{name}" for name in sorted(_OWN)] + [f"{p}:" for p in prefixes() if p != "agentkit"]


def prefixes() -> list[str]:
    """Returns the words that may stand before the colon of a name."""
    return sorted({"agentkit", *SIMULATORS, *_registered})


def check_name(name: str) -> None:
    """Refuses a name that is no ``prefix:name``; whether the simulator has it shows when it is made.

    Raises:
        UnknownNameError: proposes the nearest match.
    """
    _split(name)


def _split(name: str) -> tuple[str, str]:
    prefix, colon, rest = name.partition(":")
    if not colon and re.search(r"-v\d+$", name):
        raise unknown_name("environment", name, [], f"Did you mean 'gymnasium:{name}'?")
    if not colon or not rest:
        raise unknown_name(
            "environment",
            name,
            [*available(), *(f"{p}:{example}" for p, example in SIMULATORS.items())],
            "Expected 'prefix:name'.",
        )
    refuse_several_agents(prefix)
    if prefix not in prefixes():
        advice = (
            "Of your own, hand in the class or function itself; on the command line, --env MODULE:NAME of a module "
        )
        advice += "that can be imported here. A prefix of your own comes from envs.register."
        raise unknown_name("environment prefix", prefix, prefixes(), advice)
    return prefix, rest


def refuse_several_agents(package: str) -> None:
    """Refuses a package of environments of several agents.

    Raises:
        ConfigError: it is one, and no prefix of the user's own.
    """
    if package in _OF_SEVERAL_AGENTS and package not in _registered:
        raise ConfigError(
            f"Environments of {package} have several agents, and agentkit trains one agent in one environment. Wrap it "
            "as a gymnasium.Env in which the other agents act by a policy of yours, and give that class or function."
        )


def _factory(prefix: str) -> Factory:
    if prefix in _registered:
        return _registered[prefix]
    if prefix == "agentkit":
        return _make_own
    return importlib.import_module(f"agentkit.envs.{prefix}").make


def _make_own(name: str, seed: int, **kwargs: Any) -> dm_env.Environment:
    if name not in _OWN:
        raise unknown_name("environment", f"agentkit:{name}", [f"agentkit:{known}" for known in _OWN])
    cls = _own_class(name)
    known = set(inspect.signature(cls).parameters) - {"seed"}
    for key in kwargs:
        if key not in known:
            raise unknown_name(f"setting of agentkit:{name}", key, known)
    return cls(seed=seed, **kwargs)


def _own_class(name: str) -> Any:
    module, attribute = _OWN[name].split(".")
    return getattr(importlib.import_module(f"agentkit.envs.{module}"), attribute)


def _make_one(
    factory: Factory,
    prefix: str,
    name: str,
    seed: int,
    raw: bool,
    wrap: Wrapper,
    kwargs: dict[str, Any],
) -> Any:
    environment: Any = factory(name, seed, **kwargs)
    if specs.is_batched(environment):
        raise ConfigError(
            f"The factory of {prefix!r} gave a batch of {environment.num_envs} environments; expected one. "
            "Return one environment and let make(num_envs=N) batch it."
        )
    environment = wrap(environment)
    if hasattr(environment, "reseed"):
        environment.reseed(seed)
        if not raw:
            from agentkit.envs.resumable import ResumableEnvironment

            environment = ResumableEnvironment(environment, seed)
    return environment


def _leave_as_it_is(environment: dm_env.Environment) -> dm_env.Environment:
    return environment


def _warn_of_raw_frames(name: str, observation: Any) -> None:
    """Warns of an agent that would see an Atari game's frames as the screen has them, one at a time."""
    game = re.fullmatch(r"gymnasium:ALE/(\w+?)(-v\d+)?", name)
    if game and specs.is_spec(observation) and observation.shape == (210, 160, 3):
        warnings.warn(
            f"{name} gives single frames of 210 x 160 x 3, in which nothing is seen to move. Take --env "
            f"atari:{game[1]}, the standard protocol (84 x 84 grey, 4 stacked), unless you mean to.",
            RawFramesWarning,
            stacklevel=1,  # Always this line: Python then says it once, however many environments are made.
        )


def _make_envpool(
    name: str,
    seed: int,
    raw: bool,
    num_envs: int,
    ready: int | None,
    wrappers: Sequence[Wrapper],
    kwargs: dict[str, Any],
) -> Any:
    from agentkit.envs.workers import check_ready
    from agentkit.envs.wrapping import wrap, wrap_inside

    check_ready(num_envs, ready)
    environment: Any = _factory("envpool")(name, seed, num_envs=num_envs, ready=ready, **kwargs)
    if not raw:
        environment = prepare(environment, concatenate=True)
    environment, wrappers = wrap_inside(environment, wrappers)
    for wrapper in wrappers:
        environment = wrap(environment, [wrapper])
        if ready is not None and not environment.stateless:
            raise ConfigError(
                f"ready={ready}: expected wrappers that keep nothing from step to step, found "
                f"{type(environment).__name__}. Leave --ready out, or the wrapper."
            )
    if ready is None:
        return environment
    from agentkit.envs.envpool import ReadyEnvPool

    return ReadyEnvPool(environment)


def prepare(environment: dm_env.Environment, concatenate: bool) -> dm_env.Environment:
    """Adds what agents expect: canonical actions `[A]`, single precision, and one vector where it is asked for."""
    from agentkit.wrappers.canonical_actions import CanonicalActions, is_bounded_continuous
    from agentkit.wrappers.concat_observations import ConcatObservations
    from agentkit.wrappers.flatten_actions import FlattenActions, needs_flattening
    from agentkit.wrappers.single_precision import SinglePrecision

    observation = environment.observation_spec()
    if concatenate and isinstance(observation, dict) and all(len(s.shape) < 2 for s in observation.values()):
        environment = ConcatObservations(environment)
    if any(is_bounded_continuous(spec) for spec in tree.flatten(environment.action_spec())):
        environment = CanonicalActions(environment, clip=True)
    if any(needs_flattening(spec) for spec in tree.flatten(environment.action_spec())):
        environment = FlattenActions(environment)
    narrow = (np.float64, np.int64, np.uint64)
    everything = tree.flatten(tuple(specs.make_environment_spec(environment)))
    if any(spec.dtype in narrow for spec in everything):
        environment = SinglePrecision(environment)
    return environment
