"""Observations with some of their numbers left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.wrappers.base import ObservationWrapper


@final
class Hide(ObservationWrapper):
    """Leaves numbers out of an observation that is a vector, such as velocities, so that they must be remembered.

    Works on one environment and on a batch (``[N, D]``).

    Args:
        environment: an environment whose observation is a vector ``[D]``.
        columns: which numbers to leave out, from 0; not all of them.

    Raises:
        SpecError: if the observation is no vector.
        ConfigError: if the observation has no such number, or none would be left.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment, columns: Sequence[int]):
        super().__init__(environment)
        inner = environment.observation_spec()
        if not specs.is_spec(inner) or len(inner.shape) != 1:
            raise SpecError(f"hide: expected an observation that is a vector [D], found {inner!r:.300}.")
        size = inner.shape[0]
        if not isinstance(columns, Sequence):
            raise ConfigError(f"hide: expected columns as a list, such as [0, 2], found {columns!r}.")
        unknown = [column for column in columns if not isinstance(column, int) or not 0 <= column < size]
        if unknown:
            raise ConfigError(f"hide: expected columns from 0 to {size - 1}, found {unknown[0]!r}.")
        self._kept = [column for column in range(size) if column not in columns]
        if not self._kept:
            raise ConfigError(f"hide: expected to leave one of {size} columns, found columns={list(columns)}.")
        self._spec = self._kept_spec(inner)

    def _kept_spec(self, inner: specs.Array) -> specs.Array:
        shape = (len(self._kept),)
        if not isinstance(inner, specs.BoundedArray):
            return specs.Array(shape, inner.dtype, inner.name)
        low, high = (np.broadcast_to(bound, inner.shape)[self._kept] for bound in (inner.minimum, inner.maximum))
        return specs.BoundedArray(shape, inner.dtype, low, high, inner.name)

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(observation=timestep.observation[..., self._kept])

    def observation_spec(self) -> specs.Array:
        """Returns the spec ``[D - n]`` of what is left."""
        return self._spec
