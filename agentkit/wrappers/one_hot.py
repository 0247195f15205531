"""Indicators in the place of choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper

_MAX_VALUES = 65_536


@final
class OneHot(ObservationWrapper):
    """Makes each choice in the observation (gymnasium's Discrete, MultiDiscrete) indicators, one for each value.

    Agentkit's networks do so by themselves; this is for networks of your own, and for what is stored or exported.
    Other parts of the observation, an action mask among them, stay as they are.

    Args:
        environment: one environment with a DiscreteArray, or integers ``[n]`` with bounds, among its observations.

    Raises:
        SpecError: there is no choice in the observation, or one of more than 65,536 values; at a step, a choice is none
            of its values.
    """

    stateless = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        inner = environment.observation_spec()
        self._encoders = [
            None if path[-1:] == (specs.ACTION_MASK,) else _encoder(leaf)
            for path, leaf in tree.flatten_with_path(inner)
        ]
        if not any(self._encoders):
            raise SpecError(f"one_hot: expected a choice (a DiscreteArray, or integers [n]), found {inner!r:.300}.")
        self._spec = tree.unflatten_as(
            inner,
            [leaf if encode is None else _spec_of(leaf) for leaf, encode in self._pairs(inner)],
        )

    def _pairs(self, nest: Nest) -> list[tuple[specs.Array, Callable[[np.ndarray], np.ndarray] | None]]:
        return list(zip(tree.flatten(nest), self._encoders, strict=True))

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        seen = timestep.observation
        encoded = [leaf if encode is None else encode(leaf) for leaf, encode in self._pairs(seen)]
        return timestep._replace(observation=tree.unflatten_as(seen, encoded))

    def observation_spec(self) -> Nest:
        """Returns float32 ``[n]`` in the place of each choice, n the number of its values in all."""
        return self._spec


def _counts(spec: specs.Array) -> np.ndarray:
    """Returns the number of values of each choice; none where the numbers are sizes."""
    bounded = isinstance(spec, specs.BoundedArray) and spec.dtype.kind in "iu"
    if not isinstance(spec, specs.DiscreteArray) and not (bounded and len(spec.shape) == 1):
        return np.zeros(0, np.int64)
    low, high = (np.broadcast_to(bound, spec.shape).astype(np.int64).ravel() for bound in (spec.minimum, spec.maximum))
    counts = high - low + 1
    if counts.sum() > _MAX_VALUES:
        raise SpecError(f"one_hot: expected at most {_MAX_VALUES:,} values, found {counts.sum():,} of {spec.name!r}.")
    return counts


def _encoder(spec: specs.Array) -> Callable[[np.ndarray], np.ndarray] | None:
    counts = _counts(spec)
    if not counts.size:
        return None
    low = np.broadcast_to(spec.minimum, spec.shape).astype(np.int64).ravel()
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])  # Where the lowest value of each choice is.
    total = int(counts.sum())

    def encode(leaf: np.ndarray) -> np.ndarray:
        values = np.ravel(leaf).astype(np.int64) - low
        if ((values < 0) | (values >= counts)).any():  # It would be put into the place of another choice.
            lowest, highest = low.tolist(), (low + counts - 1).tolist()
            raise SpecError(
                f"one_hot: found {np.ravel(leaf).tolist()} of {spec.name or 'the observation'}; expected {lowest} to "
                f"{highest}, as the observation_spec says. Mend the environment, or its spec."
            )
        encoded = np.zeros(total, np.float32)
        encoded[first + values] = 1.0
        return encoded

    return encode


def _spec_of(spec: specs.Array) -> specs.BoundedArray:
    return specs.BoundedArray((int(_counts(spec).sum()),), np.float32, 0.0, 1.0, spec.name)
