"""Environments that tell a `StepClock` of their steps, for peers that take gymnasium's."""

from __future__ import annotations

from typing import Any

import gymnasium
from step_clock import StepClock


class Counted(gymnasium.Wrapper):
    """One environment; of several, each counts for itself."""

    def __init__(self, environment: gymnasium.Env, clock: StepClock):
        super().__init__(environment)
        self._clock = clock

    def reset(self, **kwargs: Any) -> Any:
        """Counts an episode."""
        self._clock.num_episodes += 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Counts a step."""
        self._clock.tick()
        return self.env.step(action)


def make_counted(job: dict[str, Any], clock: StepClock) -> gymnasium.Env:
    """The job's environment without gymnasium's checker, which costs time at every step: agentkit has it off, too."""
    return Counted(gymnasium.make(job["environment"], disable_env_checker=True), clock)


RLLIB_CLOCK: list[StepClock] = []
"""RLlib copies functions that it is given, and what they refer to; this place in a module it finds again."""


def make_for_rllib(config: Any) -> gymnasium.Env:
    """The environment of the job under ``config["job"]``, with the clock of this process."""
    return make_counted(config["job"], RLLIB_CLOCK[0])
