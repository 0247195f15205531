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

    A bound that the environment has itself holds where it is narrower. Actions of more or fewer axes than one become a
    vector. Works on one environment and on a batch.

    Args:
        environment: its actions are one array of floats without finite bounds.
        minimum: of every dimension.
        maximum: above the minimum.

    Raises:
        SpecError: the actions are none of that kind.
        ConfigError: the bounds are none, or none of the environment's actions is within them.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment, minimum: float, maximum: float):
        super().__init__(environment)
        inner = environment.action_spec()
        if not specs.is_spec(inner) or inner.dtype.kind != "f":
            raise SpecError(f"bound_actions: expected one array of continuous actions, found {inner!r:.300}.")
        most = float(min(np.finfo(inner.dtype).max, np.finfo(np.float32).max))
        if not -most < minimum < maximum < most:
            raise ConfigError(
                f"bound_actions: expected finite bounds, the minimum below the maximum, found {minimum} and {maximum}."
            )
        bounds = (inner.minimum, inner.maximum) if isinstance(inner, specs.BoundedArray) else (-np.inf, np.inf)
        low, high = np.maximum(bounds[0], minimum), np.minimum(bounds[1], maximum)
        if not (low < high).all():
            raise ConfigError(
                f"bound_actions: {minimum} to {maximum} has nothing in common with the environment's own bounds, "
                f"{bounds[0]} to {bounds[1]}. Give bounds within these."
            )
        self._shape = ((environment.num_envs,) if specs.is_batched(environment) else ()) + tuple(inner.shape)
        self._size = int(np.prod(inner.shape))
        self._low, self._high = (np.broadcast_to(bound, inner.shape).astype(inner.dtype) for bound in (low, high))
        flat = [np.broadcast_to(bound, inner.shape).ravel() / 2 for bound in (low, high)]
        self._scale, self._offset = (part.astype(np.float32) for part in (flat[1] - flat[0], flat[1] + flat[0]))

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action whose numbers are in [-1, 1]."""
        scaled = np.clip(action, -1.0, 1.0) * self._scale + self._offset  # [A] or [N, A]
        own = scaled.reshape(self._shape).astype(self._low.dtype)
        return self._environment.step(np.maximum(np.minimum(own, self._high), self._low))

    def action_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[A]`` with the bounds -1 and 1."""
        return specs.BoundedArray((self._size,), np.float32, -1.0, 1.0, "action")
