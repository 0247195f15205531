"""Bit flipping: make a word equal to another one, and be told so only when it is."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, checked_action
from agentkit.types import Nest


@final
class BitFlip(Environment):
    """Shows a word of `num_bits` bits and a goal, both random and different; action i flips bit i.

    Reward is 0 for the step that makes them equal, which terminates the episode, and -1 for any other; after
    `num_bits` steps the episode is truncated. The **optimal policy** flips each wrong bit once: its mean return is
    ``1 - n / 2 * 2**n / (2**n - 1)`` for n bits, **-3.02** with the defaults. A random policy of 8 bits seldom meets
    the goal (its mean is about -7.8), one of many bits never: with rewards alone there is nothing to learn from.

    Observation: a dict as gymnasium-robotics has it, float32 ``[num_bits]`` of 0 and 1 each: "observation" and
    "achieved_goal" (both the word) and "desired_goal". Actions: `num_bits`.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay (1707.01495), section 3.1, whose episodes do not
    terminate at the goal.
    """

    def __init__(self, num_bits: int = 8, seed: int = 0):
        check_size("num_bits", num_bits)
        super().__init__(seed, max_steps=num_bits)
        self._num_bits = num_bits
        self._word = self._goal = np.zeros(num_bits, np.float32)

    def _start(self) -> dict[str, np.ndarray]:
        self._goal = self._rng.integers(0, 2, self._num_bits).astype(np.float32)
        self._word = self._goal
        while np.array_equal(self._word, self._goal):
            self._word = self._rng.integers(0, 2, self._num_bits).astype(np.float32)
        return self._observation()

    def _advance(self, action: Nest) -> tuple[dict[str, np.ndarray], float, bool]:
        bit = checked_action(action, self._num_bits)
        self._word = self._word.copy()
        self._word[bit] = 1.0 - self._word[bit]
        return (
            self._observation(),
            float(self.compute_reward(self._word, self._goal)),
            bool(self.compute_terminated(self._word, self._goal)),
        )

    def _observation(self) -> dict[str, np.ndarray]:
        return {"achieved_goal": self._word, "desired_goal": self._goal, "observation": self._word}

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Returns 0 where goals ``[..., num_bits]`` are equal, else -1: float32 ``[...]``."""
        return np.all(achieved == desired, axis=-1).astype(np.float32) - np.float32(1.0)

    @staticmethod
    def compute_terminated(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Returns True where goals ``[..., num_bits]`` are equal: bool ``[...]``."""
        return np.all(achieved == desired, axis=-1)

    def observation_spec(self) -> dict[str, specs.BoundedArray]:
        """Returns float32 ``[num_bits]`` of 0 and 1, three times."""
        keys = ("achieved_goal", "desired_goal", "observation")
        return {key: specs.BoundedArray((self._num_bits,), np.float32, 0.0, 1.0, key) for key in keys}

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of which bit to flip."""
        return specs.DiscreteArray(self._num_bits, dtype=np.int32, name="action")

    def render(self) -> np.ndarray:
        """Returns the word above the goal, uint8 ``[32, 16 num_bits, 3]``."""
        tiles = np.kron(np.stack([self._word, self._goal]), np.ones((16, 16)))
        return np.repeat((tiles * 255).astype(np.uint8)[..., None], 3, axis=-1)
