"""Truncates long episodes."""

from __future__ import annotations

from typing import final

import dm_env

from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper, check_count


@final
class StepLimit(EnvironmentWrapper):
    """Ends an episode after `max_steps` steps, as a truncation.

    The step at the limit becomes LAST and keeps its own discount: 1 if the episode would have gone
    on, so that it bootstraps, and what the environment says if it ends there anyway.

    Args:
        environment: the environment.
        max_steps: at least 1.
    """

    within_episode = True

    def __init__(self, environment: dm_env.Environment, max_steps: int):
        super().__init__(environment)
        check_count("max_steps", max_steps)
        self._max_steps = max_steps
        self._num_steps = 0
        self._reset_next_step = True

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._num_steps = 0
        self._reset_next_step = False
        return self._environment.reset()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        if self._reset_next_step:
            return self.reset()
        timestep = self._environment.step(action)
        self._num_steps += 1
        if self._num_steps >= self._max_steps and not timestep.last():
            timestep = timestep._replace(step_type=dm_env.StepType.LAST)
        self._reset_next_step = timestep.last()
        return timestep
