"""Puts wrappers around environments: those that agents need, yours, and gymnasium's own, inside of its adapter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.wrappers.base import is_gymnasium_wrapper

NARROWED = (np.float64, np.int64, np.uint64)
"""Dtypes that agents get in 32 bits; JAX would cut integers down to these in silence."""

Wrapper = Callable[[dm_env.Environment], dm_env.Environment]


def wrap_inside(environment: Any, wrappers: Sequence[Callable[..., Any]]) -> tuple[Any, Sequence[Callable[..., Any]]]:
    """Puts gymnasium's own wrappers around a gymnasium environment, which may be in its adapter already.

    Args:
        environment: as it was made, before it is made ready for an agent.
        wrappers: of both kinds.

    Returns:
        The environment, and the wrappers that are to be put around it later.

    Raises:
        ConfigError: it is no gymnasium environment.
    """
    theirs = [each for each in wrappers if is_gymnasium_wrapper(each)]
    if theirs and hasattr(type(environment), "wrapped_by"):
        environment = environment.wrapped_by(theirs)
    elif theirs and any(cls.__module__.startswith("gymnasium.") for cls in type(environment).__mro__):
        environment = wrap(environment, theirs)
    elif theirs:
        raise ConfigError(
            f"wrappers: {getattr(theirs[0], 'func', theirs[0]).__name__} is gymnasium's, and goes around gymnasium's "
            f"environments; found {type(environment).__name__}. Take one of agentkit's (docs/environments.md)."
        )
    return environment, [each for each in wrappers if not is_gymnasium_wrapper(each)]


def wrap(environment: Any, wrappers: Sequence[Callable[..., Any]]) -> Any:
    """Puts wrappers around an environment, in their order.

    Raises:
        ConfigError: one of them puts gymnasium's own wrapper around what is no longer gymnasium's, needs more
            arguments, or returns no environment.
    """
    for wrapper in wrappers:
        try:
            environment = wrap_once(environment, wrapper)
        except (AssertionError, TypeError) as error:  # Of older and of newer versions of gymnasium.
            name = _name(wrapper)
            if "gymnasium.vector.VectorEnv" in str(error):
                raise ConfigError(
                    f"wrappers: {name} is gymnasium's, for vector environments, found around a dm_env environment. Put "
                    "it around the vector environment in a function that makes it, and hand that in "
                    "(docs/environments.md, Gymnasium's vector environments)."
                ) from error
            if "gymnasium.Env" not in str(error):
                raise
            raise ConfigError(
                f"wrappers: {name} puts gymnasium's wrapper around a dm_env environment. Give gymnasium's class "
                "itself, or functools.partial(class, ...) with its arguments; or use it in a function that makes the "
                "environment."
            ) from error
    return environment


def wrap_once(environment: Any, wrapper: Callable[..., Any]) -> Any:
    """Puts one wrapper around an environment.

    Raises:
        ConfigError: it needs more arguments, or returns no environment.
    """
    name = _name(wrapper)
    try:
        made = wrapper(environment)
    except TypeError:
        if lacks := _lacks(wrapper):
            raise ConfigError(
                f"wrappers: {name} needs {', '.join(lacks)} beside the environment. Give functools.partial({name}, "
                f"{lacks[0]}=...)."
            ) from None
        raise
    if not callable(getattr(made, "reset", None)):
        raise ConfigError(f"wrappers: expected an environment of {name}, found {made!r:.80}. Does it end in a return?")
    return made


def _lacks(wrapper: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments that a wrapper needs beside the environment."""
    try:
        parameters = list(inspect.signature(wrapper).parameters.values())
    except (TypeError, ValueError):  # Some classes written in C have none.
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters[1:] if each.default is each.empty and each.kind in named]


def _name(wrapper: Callable[..., Any]) -> str:
    return str(getattr(getattr(wrapper, "func", wrapper), "__qualname__", wrapper))


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
    everything = tree.flatten(tuple(specs.make_environment_spec(environment)))
    if any(spec.dtype in NARROWED for spec in everything):
        environment = SinglePrecision(environment)
    return environment
