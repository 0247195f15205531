"""Continuous actions in [-1, 1], whatever the simulator's own bounds are."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper


@final
class CanonicalActions(EnvironmentWrapper):
    """Maps actions in [-1, 1] onto the environment's own bounds, linearly.

    A leaf is mapped if it is a float BoundedArray whose bounds are all finite; other leaves
    (discrete, unbounded) pass untouched. Bounds as large as float32 gets are no bounds.
    Works on one environment and on a batch.

    Args:
        environment: the environment.
        clip: whether to clip actions to [-1, 1] before they are mapped, so that exploration noise
            never leaves the bounds.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment, clip: bool = False):
        super().__init__(environment)
        inner = environment.action_spec()
        self._clip = clip
        self._single = specs.is_spec(inner)
        leading = (environment.num_envs,) if specs.is_batched(environment) else ()
        self._mappings = [_mapping(spec, leading) for spec in tree.flatten(inner)]
        self._action_spec = tree.map_structure(_canonical_spec, inner)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action whose mapped leaves are in [-1, 1]."""
        if self._single:
            return self._environment.step(self._map(action, self._mappings[0]))
        leaves = [self._map(leaf, m) for leaf, m in zip(tree.flatten(action), self._mappings, strict=True)]
        return self._environment.step(tree.unflatten_as(action, leaves))

    def action_spec(self) -> Nest:
        """Returns the action spec, with bounds -1 and 1 on every mapped leaf."""
        return self._action_spec

    def _map(self, action: np.ndarray, mapping: _Mapping | None) -> np.ndarray:
        if mapping is None:
            return action
        if np.shape(action) != mapping.shape:  # It would be broadcast silently.
            raise SpecError(
                f"Action: expected shape {list(mapping.shape)}, found {list(np.shape(action))}. "
                "Give every dimension of the action_spec a value."
            )
        if self._clip:
            # Arrays for bounds: three times faster than np.clip.
            action = np.maximum(np.minimum(action, mapping.one), mapping.minus_one)
        if mapping.scale is None:
            return action
        mapped = action * mapping.scale + mapping.offset
        # Rounding may have gone beyond a bound.
        return np.maximum(np.minimum(mapped, mapping.high), mapping.low) if self._clip else mapped


class _Mapping(NamedTuple):
    """How to map one leaf; a scale of None leaves it (its bounds are -1 and 1 already)."""

    shape: tuple[int, ...]
    one: np.ndarray
    minus_one: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scale: np.ndarray | None
    offset: np.ndarray | None


def to_bounds(action: Any, agent_spec: specs.Array, spec: specs.Array, array_module: Any = np) -> Any:
    """Returns an agent's action as the environment itself takes it: in its shape, bounds and dtype, clipped to them.

    Choices count from where the environment counts them, of other kinds only the dtype changes.

    Args:
        action: ``[..., *agent_spec.shape]``, within that spec's bounds.
        agent_spec: of the agent's action; where its bounds are -1 and 1, they are mapped onto those of `spec`.
        spec: of the environment's own action, with as many numbers.
        array_module: ``numpy`` or ``jax.numpy``, which has no 64 bits: the dtype is then the nearest that it has.
    """
    mapping = _mapping(spec, ())
    if mapping is not None:
        if agent_spec.shape != spec.shape:  # As `FlattenActions` has it.
            action = action.reshape((*action.shape[: action.ndim - len(agent_spec.shape)], *spec.shape))
        if mapping.scale is not None and mapping.offset is not None and _is_canonical(agent_spec):
            action = array_module.maximum(array_module.minimum(action, mapping.one), mapping.minus_one)
            action = action * mapping.scale + mapping.offset
        low, high = mapping.low, mapping.high
        if array_module is not np:
            low, high = _inwards(low, np.inf), _inwards(high, -np.inf)
        action = array_module.maximum(array_module.minimum(action, high), low)
    elif np.any(specs.start_of(agent_spec)):
        action = array_module.asarray(action, spec.dtype) + np.asarray(specs.start_of(agent_spec), spec.dtype)
    if array_module is not np:
        narrow = {8: spec.dtype.kind + "4"}.get(spec.dtype.itemsize, spec.dtype)
        return action.astype(narrow)
    return action.astype(spec.dtype, copy=False)


def _inwards(bound: np.ndarray, inside: float) -> np.ndarray:
    """Returns a bound in 32 bits, rounded towards the inside: 0.1 of 64 bits would become more than it is."""
    rounded = bound.astype(np.float32)
    is_outside = rounded < bound if inside > 0 else rounded > bound
    return np.where(is_outside, np.nextafter(rounded, np.float32(inside)), rounded)


def is_bounded_continuous(spec: specs.Array) -> bool:
    """Returns True for a float spec with finite bounds, the kind of action that `CanonicalActions` maps."""
    return spec.dtype.kind == "f" and specs.has_finite_bounds(spec)


def _is_canonical(spec: specs.Array) -> bool:
    return bool(is_bounded_continuous(spec) and (spec.minimum == -1.0).all() and (spec.maximum == 1.0).all())


def _mapping(spec: specs.Array, leading: tuple[int, ...]) -> _Mapping | None:
    """Returns the mapping of a leaf to [-1, 1]; None if the leaf stays as it is."""
    if not is_bounded_continuous(spec):
        return None
    low = np.broadcast_to(spec.minimum, spec.shape).astype(spec.dtype)
    high = np.broadcast_to(spec.maximum, spec.shape).astype(spec.dtype)
    if (low >= high).any():
        raise ConfigError(
            f"Action {spec.name!r}: expected every minimum below its maximum, found {low} and {high}. "
            "Correct the environment's action_spec."
        )
    one = np.ones(spec.shape, spec.dtype)
    if (low == -1.0).all() and (high == 1.0).all():
        return _Mapping((*leading, *spec.shape), one, -one, low, high, None, None)
    # Halved first, since the whole range may be larger than its dtype.
    return _Mapping((*leading, *spec.shape), one, -one, low, high, high / 2 - low / 2, high / 2 + low / 2)


def _canonical_spec(spec: specs.Array) -> specs.Array:
    if not is_bounded_continuous(spec):
        return spec
    return specs.BoundedArray(spec.shape, spec.dtype, minimum=-1.0, maximum=1.0, name=spec.name)
