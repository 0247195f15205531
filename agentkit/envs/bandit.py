"""Bandit: the context names the arm that pays."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, check_size, checked_action
from agentkit.types import Nest


@final
class Bandit(Environment):
    """Plays a contextual bandit: each episode is one step.

    Reward is 1 for the arm that equals the context, else 0; the step terminates the episode.
    **Optimal return: 1**; a random policy's mean is 1 / `num_arms`.

    Observation: float32 ``[num_arms]``, one-hot context; zeros after the step. Actions: `num_arms`.
    """

    def __init__(self, num_arms: int = 3, seed: int = 0):
        check_size("num_arms", num_arms)
        super().__init__(seed)
        self._num_arms = num_arms
        self._context = 0

    def _start(self) -> np.ndarray:
        self._context = int(self._rng.integers(self._num_arms))
        return np.eye(self._num_arms, dtype=np.float32)[self._context]

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        arm = checked_action(action, self._num_arms)
        return np.zeros(self._num_arms, np.float32), float(arm == self._context), True

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[num_arms]`` in [0, 1]."""
        return specs.BoundedArray((self._num_arms,), np.float32, 0.0, 1.0, "context")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec with one action per arm."""
        return specs.DiscreteArray(self._num_arms, dtype=np.int32, name="action")
