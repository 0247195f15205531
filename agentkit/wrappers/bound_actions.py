"""Bounds for actions that have none."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper


@final
class BoundActions(EnvironmentWrapper):
    """Gives unbounded continuous actions bounds: an action in [-1, 1] is scaled to them, and clipped.

    Actions of more or fewer axes than one become a vector. Works on one environment and on a batch.

    Args:
        environment: its actions are one array of floats without finite bounds.
        minimum: of every dimension.
        maximum: above the minimum.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment, minimum: float, maximum: float):
        super().__init__(environment)
        inner = environment.action_spec()
        if not specs.is_spec(inner) or inner.dtype.kind != "f":
            raise SpecError(f"bound_actions: expected one array of continuous actions, found {inner!r:.300}.")
        if not -np.inf < minimum < maximum < np.inf:
            raise ConfigError(f"bound_actions: expected a minimum below the maximum, found {minimum} and {maximum}.")
        self._shape = ((environment.num_envs,) if specs.is_batched(environment) else ()) + tuple(inner.shape)
        self._dtype, self._size = inner.dtype, int(np.prod(inner.shape))
        self._scale, self._offset = (maximum - minimum) / 2, (maximum + minimum) / 2

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action whose numbers are in [-1, 1]."""
        scaled = np.clip(action, -1.0, 1.0) * self._scale + self._offset
        return self._environment.step(scaled.reshape(self._shape).astype(self._dtype))

    def action_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[A]`` with the bounds -1 and 1."""
        return specs.BoundedArray((self._size,), np.float32, -1.0, 1.0, "action")
