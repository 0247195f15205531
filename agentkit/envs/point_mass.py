"""Point mass: steer a point to the origin."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, check_within
from agentkit.types import Nest


@final
class PointMass(Environment):
    """Moves a point in the square [-1, 1]^D by up to `speed` along each axis and step.

    Reward is minus the distance to the origin divided by sqrt(D), after the move. Episodes never
    terminate; they are truncated after `max_steps` (LAST, discount 1). The **optimal policy** moves
    straight back along each axis, ``clip(-position / speed, -1, 1)``; its mean return over starts
    (uniform in the square) is **-0.53** with the defaults, a random policy's about -11.

    Observation: float32 ``[D]``, the position. Actions: float32 ``[D]`` in [-1, 1].
    """

    def __init__(self, num_dimensions: int = 2, speed: float = 0.25, max_steps: int = 20, seed: int = 0):
        check_size("num_dimensions", num_dimensions)
        check_size("max_steps", max_steps)
        check_within("speed", speed, 0, 2, above=True)
        super().__init__(seed, max_steps)
        self._num_dimensions = num_dimensions
        self._speed = speed
        self._position = np.zeros(num_dimensions)

    def _start(self) -> np.ndarray:
        self._position = self._rng.uniform(-1.0, 1.0, self._num_dimensions)
        return self._position.astype(np.float32)

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        action = np.asarray(action, np.float64)
        if action.shape != self._position.shape:
            raise ValueError(f"Expected an action of shape {self._position.shape}, found {action.shape}.")
        move = self._speed * np.clip(action, -1.0, 1.0)
        self._position = np.clip(self._position + move, -1.0, 1.0)
        reward = -float(np.sqrt(np.mean(self._position**2)))
        return self._position.astype(np.float32), reward, False

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[D]`` in [-1, 1]."""
        return specs.BoundedArray((self._num_dimensions,), np.float32, -1.0, 1.0, "position")

    def action_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[D]`` in [-1, 1]."""
        return specs.BoundedArray((self._num_dimensions,), np.float32, -1.0, 1.0, "action")

    def render(self) -> np.ndarray:
        """Returns the first two coordinates as a white square, uint8 ``[64, 64, 3]``."""
        image = np.zeros((64, 64, 3), np.uint8)
        column = round(float(self._position[0] + 1) / 2 * 60)
        row = round(float(self._position[1] + 1) / 2 * 60) if self._num_dimensions > 1 else 30
        image[row : row + 4, column : column + 4] = 255
        return image
