"""Continuous actions in [-1, 1], whatever the simulator's own bounds are."""

from __future__ import annotations

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper


class CanonicalActions(EnvironmentWrapper):
    """Maps actions in [-1, 1] onto the environment's own bounds, linearly.

    A leaf is mapped if it is a float BoundedArray whose bounds are all finite; other leaves
    (discrete, unbounded) pass untouched. Works on one environment and on a batch.

    Args:
        environment: the environment.
        clip: whether to clip actions to [-1, 1] before they are mapped, so that exploration noise
            never leaves the bounds.
    """

    works_on_batches = True

    def __init__(self, environment: dm_env.Environment, clip: bool = False):
        super().__init__(environment)
        inner = environment.action_spec()
        self._clip = clip
        self._single = specs.is_spec(inner)
        self._scales = [_scale_and_offset(spec) for spec in tree.flatten(inner)]
        self._action_spec = tree.map_structure(_canonical_spec, inner)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action whose mapped leaves are in [-1, 1]."""
        if self._single:
            return self._environment.step(self._map(action, self._scales[0]))
        leaves = [self._map(leaf, s) for leaf, s in zip(tree.flatten(action), self._scales, strict=True)]
        return self._environment.step(tree.unflatten_as(action, leaves))

    def action_spec(self) -> Nest:
        """The action spec, with bounds -1 and 1 on every mapped leaf."""
        return self._action_spec

    def _map(self, action: np.ndarray, scale: tuple[np.ndarray, np.ndarray] | None | bool) -> np.ndarray:
        if scale is None:
            return action
        if self._clip:
            action = np.maximum(np.minimum(action, 1.0), -1.0)  # Three times faster than np.clip.
        if scale is True:
            return action
        assert isinstance(scale, tuple)
        return action * scale[0] + scale[1]


def is_bounded_continuous(spec: specs.Array) -> bool:
    """True for a float spec with finite bounds, the kind of action that `CanonicalActions` maps."""
    return (
        isinstance(spec, specs.BoundedArray)
        and spec.dtype.kind == "f"
        and bool(np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all())
    )


def _scale_and_offset(spec: specs.Array) -> tuple[np.ndarray, np.ndarray] | None | bool:
    """(scale, offset); True where bounds are -1 and 1 already, None where nothing is mapped."""
    if not is_bounded_continuous(spec):
        return None
    low = np.broadcast_to(spec.minimum, spec.shape).astype(spec.dtype)
    high = np.broadcast_to(spec.maximum, spec.shape).astype(spec.dtype)
    if (low >= high).any():
        raise ConfigError(
            f"Action {spec.name!r}: expected every minimum below its maximum, found {low} and {high}. "
            "Correct the environment's action_spec."
        )
    if (low == -1.0).all() and (high == 1.0).all():
        return True
    return (high - low) / 2, (high + low) / 2


def _canonical_spec(spec: specs.Array) -> specs.Array:
    if not is_bounded_continuous(spec):
        return spec
    return specs.BoundedArray(spec.shape, spec.dtype, minimum=-1.0, maximum=1.0, name=spec.name)
