"""Rewards within bounds, in training only."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper


@final
class ClipReward(ObservationWrapper):
    """Clips rewards in training; evaluations go without it, and their returns stay the game's own.

    Works on one environment and on a batch, such as EnvPool's.

    Args:
        environment: the environment.
        minimum: of a reward.
        maximum: above the minimum.
    """

    works_on_batches = True
    stateless = True
    training_only = True

    def __init__(self, environment: dm_env.Environment, minimum: float = -1.0, maximum: float = 1.0):
        super().__init__(environment)
        if not minimum < maximum:
            raise ConfigError(f"clip_reward: expected a minimum below the maximum, found {minimum} and {maximum}.")
        self._minimum, self._maximum = minimum, maximum

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.reward is None:
            return timestep
        return timestep._replace(reward=tree.map_structure(self._clipped, timestep.reward))

    def _clipped(self, reward: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(reward, self._minimum), self._maximum, dtype=np.result_type(reward))

    def reward_spec(self) -> Nest:
        """Returns the spec of the clipped rewards."""
        return tree.map_structure(
            lambda spec: specs.BoundedArray(spec.shape, spec.dtype, self._minimum, self._maximum, spec.name),
            self._environment.reward_spec(),
        )
