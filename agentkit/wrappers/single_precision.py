"""Casts what an environment gives to 32 bits."""

from __future__ import annotations

from typing import Any, final

import dm_env
import numpy as np
import tree
from dm_env import specs as dm_specs

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper

_NARROWER: dict[np.dtype, np.dtype] = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
}


@final
class SinglePrecision(ObservationWrapper):
    """Turns float64 into float32, int64 into int32 and uint64 into uint32; other dtypes stay.

    Works on one environment and on a batch. Actions are passed on as they come; only their spec
    narrows. Observations, rewards and discounts are cast. An integer whose bounds are beyond the narrower
    dtype becomes float32, which has 24 bits; of one without bounds, a value that does not fit is a `SpecError`.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        self._observation_spec = tree.map_structure(_narrow_spec, environment.observation_spec())
        self._action_spec = tree.map_structure(_narrow_action_spec, environment.action_spec())
        self._reward_spec = tree.map_structure(_narrow_spec, environment.reward_spec())
        self._discount_spec = tree.map_structure(_narrow_spec, environment.discount_spec())
        leading = (environment.num_envs,) if specs.is_batched(environment) else ()
        self._cast_observation = _caster(environment.observation_spec(), "observation", leading)
        # One scalar reward is the common case and casts fastest as a scalar.
        self._cast_reward = _caster(environment.reward_spec(), "reward", leading, scalars=not leading)
        self._cast_discount = _caster(environment.discount_spec(), "discount", leading, scalars=not leading)

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type, reward, discount, observation = timestep
        if self._cast_observation is not None:
            observation = self._cast_observation(observation)
        if reward is not None and self._cast_reward is not None:
            reward = self._cast_reward(reward)
        if discount is not None and self._cast_discount is not None:
            discount = self._cast_discount(discount)
        return dm_env.TimeStep(step_type, reward, discount, observation)

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations, narrowed."""
        return self._observation_spec

    def action_spec(self) -> Nest:
        """Returns the spec of the actions, narrowed."""
        return self._action_spec

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards, narrowed."""
        return self._reward_spec

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts, narrowed."""
        return self._discount_spec


def _narrow_dtype(spec: specs.Array) -> np.dtype | None:
    """Returns the dtype to cast to; None to leave it."""
    dtype = _NARROWER.get(spec.dtype)
    bounded = isinstance(spec, dm_specs.BoundedArray) and not isinstance(spec, dm_specs.DiscreteArray)
    if dtype is None or dtype.kind == "f" or not bounded:
        return dtype
    whole, narrow = np.iinfo(spec.dtype), np.iinfo(dtype)
    beyond = (spec.minimum < narrow.min).any() or (spec.maximum > narrow.max).any()
    # The whole of int64 says no more than no bounds.
    unbounded = (spec.minimum == whole.min).all() and (spec.maximum == whole.max).all()
    return np.dtype(np.float32) if beyond and not unbounded else dtype


def _narrow_action_spec(spec: specs.Array) -> specs.Array:
    """Returns a narrower spec, of integers as before: no agent may give fractions to an environment that counts."""
    return _narrow_spec_to(spec, _NARROWER.get(spec.dtype))


def _narrow_spec(spec: specs.Array) -> specs.Array:
    return _narrow_spec_to(spec, _narrow_dtype(spec))


def _narrow_spec_to(spec: specs.Array, dtype: np.dtype | None) -> specs.Array:
    if dtype is None:
        return spec
    if isinstance(spec, dm_specs.DiscreteArray):
        most = np.iinfo(dtype).max
        if spec.num_values > most:
            raise SpecError(f"{spec.name or 'value'}: expected at most {most} values, found {spec.num_values}.")
        return dm_specs.DiscreteArray(spec.num_values, dtype=dtype, name=spec.name)
    if isinstance(spec, specs.Choices) and dtype.kind in "iu":
        return specs.Choices(
            spec.shape, dtype, np.clip(spec.maximum, None, np.iinfo(dtype).max).astype(dtype), spec.name
        )
    if isinstance(spec, dm_specs.BoundedArray):
        minimum, maximum = spec.minimum, spec.maximum
        if dtype.kind in "iu":  # A bound beyond it would wrap around.
            ends = np.iinfo(dtype)
            minimum, maximum = np.clip(minimum, ends.min, None), np.clip(maximum, None, ends.max)
        with np.errstate(over="ignore"):  # A float64 bound of 1.8e308 means infinity.
            return dm_specs.BoundedArray(spec.shape, dtype, minimum.astype(dtype), maximum.astype(dtype), spec.name)
    return dm_specs.Array(spec.shape, dtype, spec.name)


def _narrow_whole(value: Any, dtype: np.dtype, name: str | None) -> np.ndarray:
    """Casts integers to fewer bits; numpy would wrap what does not fit around."""
    array = np.asarray(value)
    narrow = array.astype(dtype)
    if array.dtype.kind in "iu" and (narrow != array).any():
        bad, ends = array[narrow != array].flat[0], np.iinfo(dtype)
        raise SpecError(
            f"{name or 'value'}: found {bad}, which does not fit into {dtype} ({ends.min} to {ends.max}). Give the "
            "spec its bounds, with which it becomes float32, or scale the value in the environment."
        )
    return narrow


def _caster(spec: Nest, what: str, leading: tuple[int, ...], scalars: bool = False) -> Any:
    """Returns a function that casts a value of `spec`, or None where nothing needs a cast."""
    leaves = tree.flatten(spec)
    if all(_narrow_dtype(leaf) is None for leaf in leaves):
        return None
    if specs.is_spec(spec):
        return _leaf_caster(spec, what, leading, scalars)
    named = zip(leaves, specs.leaf_names(spec), strict=True)
    casters = [_leaf_caster(leaf, f"{what}/{name}", leading) for leaf, name in named]

    def cast(value: Nest) -> Nest:
        flat = tree.flatten(value)
        if len(flat) != len(casters):
            specs.validate(value, spec, what)  # Raises, naming the leaves.
        return tree.unflatten_as(value, [cast_leaf(leaf) for cast_leaf, leaf in zip(casters, flat, strict=True)])

    return cast


def _leaf_caster(spec: specs.Array, what: str, leading: tuple[int, ...], scalars: bool = False) -> Any:
    """Returns a function to the narrower dtype; what is not of the spec's own dtype is looked at by `specs.fit`."""
    dtype = _narrow_dtype(spec)
    if dtype is None:
        return lambda value: value
    inner = specs.Array((*leading, *spec.shape), spec.dtype, spec.name)
    as_scalar = scalars and spec.shape == ()

    def cast(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)) or value.dtype != spec.dtype:
            value = specs.fit_array(value, inner, what, finite=False)
        narrow = _narrow_whole(value, dtype, spec.name) if dtype.kind in "iu" else np.asarray(value, dtype)
        return narrow[()] if as_scalar else narrow

    if not (as_scalar and dtype.kind == "f"):
        return cast
    scalar_type = dtype.type
    return lambda value: scalar_type(value) if type(value) is float or type(value) is np.float64 else cast(value)
