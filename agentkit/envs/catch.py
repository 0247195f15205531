"""Catch: move a paddle under a falling ball."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, checked_action
from agentkit.types import Nest


@final
class Catch(Environment):
    """Drops a ball from a random column; the paddle in the bottom row moves left, stays or moves right.

    Reward is 1 for a catch and -1 for a miss, at the last step, which terminates the episode; 0
    before. **Optimal return: 1** for a board at least half as high as it is wide (`rows` - 1 steps
    reach any column from the middle). A uniformly random policy's mean is about -0.6 on 10 x 5.

    Observation: float32 ``[rows, columns]``, 1 at the ball and at the paddle, 0 elsewhere.
    Actions: 0 left, 1 stay, 2 right. Episodes are `rows` - 1 steps.

    The game is that of Mnih et al. 2014 (Recurrent Models of Visual Attention) and of bsuite's catch.
    """

    def __init__(self, rows: int = 10, columns: int = 5, seed: int = 0):
        check_size("rows", rows, 2)
        check_size("columns", columns)
        super().__init__(seed)
        self._rows = rows
        self._columns = columns
        self._row = self._ball = self._paddle = 0

    def _start(self) -> np.ndarray:
        self._row = 0
        self._ball = int(self._rng.integers(self._columns))
        self._paddle = self._columns // 2
        return self._observation()

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        move = checked_action(action, 3) - 1
        self._paddle = min(max(self._paddle + move, 0), self._columns - 1)
        self._row += 1
        terminated = self._row == self._rows - 1
        reward = 0.0
        if terminated:
            reward = 1.0 if self._paddle == self._ball else -1.0
        return self._observation(), reward, terminated

    def _observation(self) -> np.ndarray:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._row, self._ball] = 1.0
        board[-1, self._paddle] = 1.0
        return board

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[rows, columns]`` in [0, 1]."""
        return specs.BoundedArray((self._rows, self._columns), np.float32, 0.0, 1.0, "board")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of the actions: 0 left, 1 stay, 2 right."""
        return specs.DiscreteArray(3, dtype=np.int32, name="action")

    def render(self) -> np.ndarray:
        """Returns the board as an image, uint8 ``[8 rows, 8 columns, 3]``."""
        image = (self._observation() * 255).astype(np.uint8)
        return np.repeat(np.kron(image, np.ones((8, 8), np.uint8))[..., None], 3, axis=-1)
