"""Shows the agent its last action and reward."""

from __future__ import annotations

from typing import NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper


class OAR(NamedTuple):
    """Holds an observation of `ObservationActionReward`.

    Attributes:
        observation: the environment's observation.
        action: the action that led to it; zeros at the first step.
        reward: the reward it came with; zeros at the first step.
    """

    observation: Nest
    action: Nest
    reward: Nest


@final
class ObservationActionReward(EnvironmentWrapper):
    """Makes each observation an `OAR`, as recurrent agents expect (Kapturowski et al. 2019, R2D2).

    Rewards that are changed for training only are changed around it: evaluations show the environment's own.
    """

    within_episode = True
    observes_rewards = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        self._action_dtypes = tree.map_structure(lambda s: s.dtype, environment.action_spec())
        self._reward_dtypes = tree.map_structure(lambda s: s.dtype, environment.reward_spec())
        self._no_action = specs.zeros(environment.action_spec())
        self._no_reward = specs.zeros(environment.reward_spec())

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._first(self._environment.reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        timestep = self._environment.step(action)
        if timestep.first():
            return self._first(timestep)
        shown = OAR(
            timestep.observation,
            tree.map_structure(lambda dtype, a: np.array(a, dtype), self._action_dtypes, action),
            tree.map_structure(lambda dtype, r: np.array(r, dtype), self._reward_dtypes, timestep.reward),
        )
        return timestep._replace(observation=shown)

    def _first(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        action, reward = nests.copy_nest((self._no_action, self._no_reward))
        return timestep._replace(observation=OAR(timestep.observation, action, reward))

    def observation_spec(self) -> OAR:
        """Returns an `OAR` of specs."""
        return OAR(
            self._environment.observation_spec(),
            self._environment.action_spec(),
            # The zeros of the first step may lie outside the bounds of a reward.
            specs.to_arrays(self._environment.reward_spec()),
        )
