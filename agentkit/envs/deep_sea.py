"""Deep sea: a long way to a treasure, which only directed exploration finds."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, checked_action
from agentkit.types import Nest
from agentkit.wrappers.base import check_count


@final
class DeepSea(Environment):
    """Lets a diver start at the top left of a `size` x `size` grid and sink one row each step.

    One action moves right and costs 0.01 / `size`, the other moves left for free; with
    `randomize_actions` which is which differs from cell to cell, fixed by `mapping_seed` (never by
    the episode's seed). Moving right from the last column at the last row gives 1. **Optimal
    return: 0.99** (right at every step); going left always gives 0, and a random policy finds the
    treasure once in 2**size episodes.

    Observation: float32 ``[size, size]``, one-hot position, all zeros after the last step.
    Actions: 2. Episodes terminate after `size` steps.

    Source: Osband et al. 2019, Deep Exploration via Randomized Value Functions, section 4.
    """

    def __init__(self, size: int = 8, randomize_actions: bool = False, mapping_seed: int = 0, seed: int = 0):
        check_size("size", size)
        check_count("mapping_seed", mapping_seed, least=0)
        super().__init__(seed)
        self._size = size
        self._row = self._column = 0
        self._right = np.ones((size, size), np.int32)
        if randomize_actions:
            self._right = np.random.default_rng(mapping_seed).integers(0, 2, (size, size), np.int32)

    def _start(self) -> np.ndarray:
        self._row = self._column = 0
        return self._observation()

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        reward = 0.0
        last = self._size - 1
        if checked_action(action, 2) == self._right[self._row, self._column]:
            reward -= 0.01 / self._size
            if self._row == last and self._column == last:
                reward += 1.0
            self._column = min(self._column + 1, last)
        else:
            self._column = max(self._column - 1, 0)
        self._row += 1
        return self._observation(), reward, self._row == self._size

    def _observation(self) -> np.ndarray:
        grid = np.zeros((self._size, self._size), np.float32)
        if self._row < self._size:
            grid[self._row, self._column] = 1.0
        return grid

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[size, size]`` in [0, 1]."""
        return specs.BoundedArray((self._size, self._size), np.float32, 0.0, 1.0, "position")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of two actions; 1 is right unless the actions are randomized."""
        return specs.DiscreteArray(2, dtype=np.int32, name="action")

    def render(self) -> np.ndarray:
        """Returns the grid as an image, uint8 ``[8 size, 8 size, 3]``."""
        image = (self._observation() * 255).astype(np.uint8)
        return np.repeat(np.kron(image, np.ones((8, 8), np.uint8))[..., None], 3, axis=-1)
