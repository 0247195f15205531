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

_NARROWER = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}


@final
class SinglePrecision(ObservationWrapper):
    """Turns float64 into float32 and int64 into int32; other dtypes stay.

    Works on one environment and on a batch. Actions are passed on as they come; only their spec
    narrows. Observations, rewards and discounts are cast. An int64 whose bounds are beyond int32 becomes
    float32, which has 24 bits; of one without bounds, a value that does not fit is a `SpecError`.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        self._observation_spec = tree.map_structure(_narrow_spec, environment.observation_spec())
        self._action_spec = tree.map_structure(_narrow_spec, environment.action_spec())
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


_INT32 = np.iinfo(np.int32)


def _narrow_dtype(spec: specs.Array) -> np.dtype | None:
    """Returns the dtype to cast to; None to leave it."""
    bounded = spec.dtype == np.int64 and isinstance(spec, dm_specs.BoundedArray)
    if bounded and not isinstance(spec, dm_specs.DiscreteArray):
        beyond = (spec.minimum < _INT32.min).any() or (spec.maximum > _INT32.max).any()
        # The whole of int64 says no more than no bounds.
        unbounded = (spec.minimum == np.iinfo(np.int64).min).all() and (spec.maximum == np.iinfo(np.int64).max).all()
        if beyond and not unbounded:
            return np.dtype(np.float32)
    return _NARROWER.get(spec.dtype)


def _narrow_spec(spec: specs.Array) -> specs.Array:
    dtype = _narrow_dtype(spec)
    if dtype is None:
        return spec
    if isinstance(spec, dm_specs.DiscreteArray):
        if spec.num_values > _INT32.max:
            raise SpecError(f"{spec.name or 'value'}: expected at most {_INT32.max} values, found {spec.num_values}.")
        return dm_specs.DiscreteArray(spec.num_values, dtype=dtype, name=spec.name)
    if isinstance(spec, dm_specs.BoundedArray):
        minimum, maximum = spec.minimum, spec.maximum
        if dtype.kind == "i":  # An int64 bound beyond int32 would wrap around.
            minimum, maximum = np.clip(minimum, _INT32.min, None), np.clip(maximum, None, _INT32.max)
        with np.errstate(over="ignore"):  # A float64 bound of 1.8e308 means infinity.
            return dm_specs.BoundedArray(spec.shape, dtype, minimum.astype(dtype), maximum.astype(dtype), spec.name)
    return dm_specs.Array(spec.shape, dtype, spec.name)


def _narrow_whole(value: Any, name: str | None) -> np.ndarray:
    """Casts int64 to int32; numpy would wrap what does not fit around."""
    array = np.asarray(value)
    narrow = array.astype(np.int32)
    if (narrow != array).any():
        bad = array[narrow != array].flat[0]
        raise SpecError(
            f"{name or 'value'}: found {bad}, which does not fit into int32 ({_INT32.min} to {_INT32.max}). Give the "
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
        narrow = _narrow_whole(value, spec.name) if dtype.kind == "i" else np.asarray(value, dtype)
        return narrow[()] if as_scalar else narrow

    if not (as_scalar and dtype.kind == "f"):
        return cast
    scalar_type = dtype.type
    return lambda value: scalar_type(value) if type(value) is float or type(value) is np.float64 else cast(value)
