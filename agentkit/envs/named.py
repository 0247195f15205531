"""Makes the environments of a name: a single one, or members of a batch."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dm_env

from agentkit import specs
from agentkit.envs.prefixes import Factory, factory_of, split
from agentkit.envs.wrapping import Wrapper, prepare, wrap, wrap_inside
from agentkit.errors import ConfigError, RawFramesWarning


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

    prefix, rest = split(name)
    factory = _factory_for(prefix, evaluation)
    ready_for_agents = functools.partial(fit_out, name=f"{prefix}:{rest}", raw=raw, wrappers=wrappers)
    # What every environment needs costs less around all of them; a user's wrappers are for a single one.
    each = ready_for_agents if wrappers else _leave_as_it_is
    made = [_make_one(factory, prefix, rest, episode_seed(seed, i), raw, each, dict(settings)) for i in members]
    batch = BatchedEnvironment(made, members.start)
    return batch if wrappers else ready_for_agents(batch)


def make(
    name: str,
    seed: int,
    num_envs: int | None,
    *,
    raw: bool,
    wrappers: Sequence[Wrapper],
    settings: dict[str, Any],
    evaluation: bool,
) -> Any:
    """Makes one environment, or a batch of `num_envs`; see `envs.make`."""
    if num_envs is not None:
        numbers = range(num_envs)
        return make_members(name, seed, numbers, raw=raw, wrappers=wrappers, settings=settings, evaluation=evaluation)
    prefix, rest = split(name)
    ready_for_agents = functools.partial(fit_out, name=f"{prefix}:{rest}", raw=raw, wrappers=wrappers)
    return _make_one(_factory_for(prefix, evaluation), prefix, rest, seed, raw, ready_for_agents, settings)


def _factory_for(prefix: str, evaluation: bool) -> Factory:
    factory = factory_of(prefix)
    if evaluation and "evaluation" in inspect.signature(factory).parameters:
        return functools.partial(factory, evaluation=True)
    return factory


def fit_out(environment: Any, *, name: str, raw: bool, wrappers: Sequence[Wrapper]) -> Any:
    """Makes an environment of a name ready for an agent, with its wrappers around it; see `envs.make`."""
    environment, wrappers = wrap_inside(environment, wrappers)
    if not raw:
        environment = prepare(environment, concatenate=name.startswith("dm_control:"))
    environment = wrap(environment, wrappers)
    if not raw:
        _warn_of_raw_frames(name, environment.observation_spec())
    return environment


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
