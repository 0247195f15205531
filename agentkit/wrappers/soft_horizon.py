"""Cuts what is learned from into pieces of limited length, and lets the environment go on."""

from __future__ import annotations

from typing import Any, final

import dm_env

from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper


@final
class SoftHorizon(EnvironmentWrapper):
    """Ends an episode after `max_steps` steps without a reset of the environment inside (RLlib's soft_horizon).

    The step at the horizon becomes LAST and keeps its own discount, so that it bootstraps. The next `reset`, or `step`,
    gives FIRST with the same observation again, and the environment inside takes the first action of the new episode
    where it stood. Where it ends by itself, it is reset as always. `reseed` makes the next `reset` a true one.

    Adders, a memory and episodes' returns see an end there. Evaluations have it, too: an environment that never ends
    has returns in this way only. What keeps something within an episode, such as `FrameStack`, has its place inside.

    Args:
        environment: the environment.
        max_steps: at least 1.
    """

    ends_softly = True

    def __init__(self, environment: dm_env.Environment, max_steps: int):
        super().__init__(environment)
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise ConfigError(f"soft_horizon: expected max_steps of at least 1, found {max_steps!r}.")
        self._max_steps = max_steps
        self._num_steps = 0
        self._reset_next_step = True
        self._observation: Nest = None  # At the horizon, until the next episode begins with it.

    @property
    def goes_on(self) -> bool:
        """Returns whether the next episode goes on where this one has ended."""
        return self._observation is not None or bool(getattr(self._environment, "goes_on", False))

    @property
    def reseed(self) -> Any:
        """Seeds the environment inside, where it has ``reseed(seed)``; the next `reset` is then a true one."""
        inner = self._environment.reseed  # An AttributeError here says that there is none.

        def reseed(seed: int) -> None:
            self._observation = None
            inner(seed)

        return reseed

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode: where the last one has reached its horizon, from there."""
        self._num_steps = 0
        self._reset_next_step = False
        if self._observation is None:
            return self._environment.reset()
        observation, self._observation = self._observation, None
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, observation)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        if self._reset_next_step:
            return self.reset()
        timestep = self._environment.step(action)
        self._num_steps += 1
        if self._num_steps >= self._max_steps and not timestep.last():
            self._observation = timestep.observation
            timestep = timestep._replace(step_type=dm_env.StepType.LAST)
        self._reset_next_step = timestep.last()
        return timestep
