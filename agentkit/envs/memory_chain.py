"""Memory chain: remember a bit shown at the start until it is asked for."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, checked_action
from agentkit.types import Nest


@final
class MemoryChain(Environment):
    """Shows a bit in the first observation; after `length` steps the agent must name it.

    Only the last action counts: reward 1 if it equals the bit, else -1; 0 before. **Optimal return:
    1**, which needs memory; without memory no policy's mean exceeds 0.

    Observation: float32 ``[3]``: the bit as -1 or 1 at the first step (0 later), the share of time
    gone, and 1 when the question is asked (0 before and after).
    Actions: 0 and 1. Episodes terminate after `length` + 1 steps.

    A reduced form of bsuite's memory_len (Osband et al. 2020, Behaviour Suite).
    """

    def __init__(self, length: int = 5, seed: int = 0):
        check_size("length", length)
        super().__init__(seed)
        self._length = length
        self._time = self._bit = 0

    def _start(self) -> np.ndarray:
        self._time = 0
        self._bit = int(self._rng.integers(2))
        return self._observation()

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        answer = checked_action(action, 2)
        self._time += 1
        terminated = self._time > self._length
        reward = 0.0
        if terminated:
            reward = 1.0 if answer == self._bit else -1.0
        return self._observation(), reward, terminated

    def _observation(self) -> np.ndarray:
        cue = 2.0 * self._bit - 1.0 if self._time == 0 else 0.0
        return np.array([cue, self._time / (self._length + 1), self._time == self._length], np.float32)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[3]`` in [-1, 1]."""
        return specs.BoundedArray((3,), np.float32, -1.0, 1.0, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of the answers, 0 and 1."""
        return specs.DiscreteArray(2, dtype=np.int32, name="action")

    def render(self) -> np.ndarray:
        """Returns the observation as three grey tiles, uint8 ``[16, 48, 3]``."""
        tiles = np.kron((self._observation()[None] + 1) / 2, np.ones((16, 16)))  # [16, 48]
        return np.repeat((tiles * 255).astype(np.uint8)[..., None], 3, axis=-1)
