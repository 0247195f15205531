"""What the environments of other packages in JAX share: settings, dtypes of states, and time limits."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.errors import ConfigError, SpecError, unknown_name
from agentkit.types import Array, Nest
from agentkit.wrappers.base import check_count


@final
class Settings:
    """Holds the settings of an environment, so that environments of equal ones are equal and compiled once.

    Lists, dicts and arrays have no hash, so they are compared by what is in them.

    Attributes:
        values: by name, as they were given.
    """

    def __init__(self, values: Mapping[str, Any] | None = None):
        """Takes the settings by name.

        Raises:
            ConfigError: one cannot be compared.
        """
        self.values = dict(values or {})
        self._form = tuple((name, _comparable(name, self.values[name])) for name in sorted(self.values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._form == other._form

    def __hash__(self) -> int:
        return hash(self._form)

    def __repr__(self) -> str:
        return f"Settings({self.values})"


def _comparable(name: str, value: Any) -> Any:
    """Returns what stands for a setting's value: equal for equal ones, and with a hash."""
    if isinstance(value, Mapping):
        return type(value), frozenset((key, _comparable(name, each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_comparable(name, each) for each in value)
    if isinstance(value, np.ndarray | jax.Array):
        return value.shape, str(value.dtype), np.asarray(value).tobytes()
    try:
        hash(value)
    except TypeError as error:
        if dataclasses.is_dataclass(value):  # One with arrays in it, such as flax makes.
            fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
            return type(value), tuple(_comparable(name, each) for each in fields)
        raise ConfigError(
            f"The environment's setting {name} is of {type(value).__name__}, which has no hash, so that nobody knows "
            "whether two are equal. Give numbers, texts, lists, dicts, arrays or a frozen dataclass."
        ) from error
    return type(value), value


def keywords_of(*functions: Callable[..., Any]) -> list[str]:
    """Returns the names of all arguments that functions take, without ``self`` and those that stand for more."""
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [
        parameter.name
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in fixed and parameter.name != "self"
    ]


def dtypes_after_a_step(reset: Callable[[Array], Any], step: Callable[[Any, Nest], Any], action: Nest) -> Nest:
    """Returns the dtypes of a state that has been stepped: a reset's may be Python's numbers, which a loop refuses."""

    def move(key: Array) -> Any:
        return step(reset(key), jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), action))

    return jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(move, jax.random.PRNGKey(0)))


def cast(nest: Nest, dtypes: Nest) -> Nest:
    """Returns a nest as arrays of the given dtypes."""
    return jax.tree.map(jnp.asarray, nest, dtypes)


def spec_of_space(space: Any, name: str, environment: str) -> specs.Array:
    """Returns the spec of a space as gymnax and JaxMARL have them.

    Args:
        space: with ``n``, or with ``low`` and ``high``.
        name: "observation" or "action".
        environment: for messages.

    Raises:
        SpecError: it is another one, actions have no bounds, or bounds are none of the dtype's numbers or cross.
    """
    if hasattr(space, "n"):
        return specs.DiscreteArray(int(space.n), dtype=np.int32, name=name)
    if not hasattr(space, "low"):
        raise SpecError(f"{environment}: expected a {name} space Box or Discrete, found {space}.")
    dtype = np.dtype(space.dtype)
    shape = tuple(int(n) for n in np.atleast_1d(np.asarray(space.shape, int)))  # Hanabi's is a number.
    given = [np.asarray(bound) for bound in (space.low, space.high)]
    with np.errstate(invalid="ignore", over="ignore"):
        bounds = [bound.astype(dtype) for bound in given]
    is_lost = dtype.kind in "biu" and any(np.any(bound != own) for bound, own in zip(bounds, given, strict=True))
    low, high = (np.broadcast_to(bound, shape) for bound in bounds)
    if is_lost or not np.all(low <= high):  # False of NaN, too.
        raise SpecError(
            f"{environment}: expected bounds of its {name} space in {dtype}, found {space.low} and {space.high}."
        )
    if dtype.kind == "f":  # The largest numbers stand for no bound.
        most = np.finfo(dtype).max
        low, high = np.where(low <= -most, -np.inf, low), np.where(high >= most, np.inf, high)
    if name == "action" and not np.isfinite([low, high]).all():
        raise SpecError(f"{environment}: expected bounded actions, found {space}.")
    return specs.BoundedArray(shape, dtype, low, high, name)


def as_given(spec: specs.Array, found: Any, environment: str) -> specs.Array:
    """Returns the spec of observations, in float32 where it says whole numbers of what are floats.

    A cast to whole numbers would lose their fractions; gymnax's Catch says int32 of floats, for one.

    Args:
        spec: as the package has it.
        found: an observation, or its shape and dtype.
        environment: for messages.

    Raises:
        SpecError: it says that floats are choices.
    """
    if not np.issubdtype(found.dtype, np.inexact) or spec.dtype.kind not in "biu":
        return spec
    if isinstance(spec, specs.DiscreteArray):
        raise SpecError(f"{environment}: expected choices of its observation space {spec}, found {found.dtype}.")
    if isinstance(spec, specs.BoundedArray):
        return specs.BoundedArray(spec.shape, np.float32, spec.minimum, spec.maximum, spec.name)
    return specs.Array(spec.shape, np.float32, spec.name)


def to_bounds(action: Array, spec: specs.Array) -> Array:
    """Returns an action in [-1, 1] as one within the bounds of a spec; a choice stays as it is."""
    if isinstance(spec, specs.DiscreteArray):
        return action
    # Halved first, since the whole range may be larger than its dtype.
    return action * (spec.maximum / 2 - spec.minimum / 2) + (spec.maximum / 2 + spec.minimum / 2)


def unbounded(example: Nest) -> Nest:
    """Returns the specs of arrays of which nothing is known but shapes and dtypes; floats become float32.

    Args:
        example: arrays or their shapes, in dicts or by themselves.
    """
    if isinstance(example, Mapping):
        return {name: unbounded(each) for name, each in example.items()}
    dtype = np.float32 if np.issubdtype(example.dtype, np.floating) else example.dtype
    return specs.Array(tuple(example.shape), dtype, "observation")


@final
@dataclasses.dataclass(frozen=True)
class BraxInterface(JaxEnvironment):
    """Steps an environment of brax's interface, as brax and MuJoCo Playground have it, without any of their wrappers.

    ``reset(key)`` and ``step(state, action)`` return a state with `obs`, `reward` and `done`. What is `done` is a
    termination; after `episode_length` steps the episode is cut off, with its own final observation.

    Attributes:
        build: makes the environment; called once.
        arguments: of `build`.
        episode_length: steps of an episode.
        observed: the one observation that is given, where there are several by name; None gives all.
    """

    build: Callable[..., Any]
    arguments: tuple[Any, ...]
    episode_length: int
    observed: str | None = None

    def __post_init__(self) -> None:
        check_count("episode_length", self.episode_length)  # Of 0 steps or fewer, each would end at its first.

    @functools.cached_property
    def _made(self) -> Any:
        return self.build(*self.arguments)

    @functools.cached_property
    def _dtypes(self) -> Nest:
        return dtypes_after_a_step(self._made.reset, self._made.step, self.action_spec())

    @functools.cached_property
    def _observation(self) -> Nest:
        found = jax.eval_shape(self._made.reset, jax.random.PRNGKey(0)).obs
        if isinstance(found, Mapping) and self.observed is not None and self.observed not in found:
            raise unknown_name("observation", self.observed, found, "None gives all of them.")
        return unbounded(self._seen(found))

    def observation_spec(self) -> Nest:
        """Returns the spec of what is seen; raises UnknownNameError where there is no such observation."""
        return self._observation

    def action_spec(self) -> specs.BoundedArray:
        """Returns the spec of its actions: float32 in [-1, 1]."""
        return specs.BoundedArray((self._made.action_size,), np.float32, -1.0, 1.0, "action")

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        state = cast(self._made.reset(key), self._dtypes)
        return (state, jnp.int32(0)), first_step(self._cast_seen(state.obs))

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes an action."""
        before, num_steps = state
        after, num_steps = cast(self._made.step(before, action), self._dtypes), num_steps + 1
        truncated = num_steps >= self.episode_length
        return (after, num_steps), next_step(self._cast_seen(after.obs), after.reward, after.done > 0, truncated)

    def render(self, state: Any) -> np.ndarray:
        """Returns an image of a state, as the environment's own `render` draws it."""
        before, _ = state
        drawn = self._made.render([getattr(before, "pipeline_state", before)])
        return np.asarray(drawn[0], np.uint8)

    def _seen(self, observations: Nest) -> Nest:
        if not isinstance(observations, Mapping):
            return observations
        return dict(observations) if self.observed is None else observations[self.observed]

    def _cast_seen(self, observations: Nest) -> Nest:
        return jax.tree.map(
            lambda leaf, spec: jnp.asarray(leaf, spec.dtype), self._seen(observations), self._observation
        )
