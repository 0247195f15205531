"""An environment whose numbers go wrong at one step, for tests in this and in other processes."""

import os

import numpy as np

from agentkit import envs

BAD = {"nan": np.nan, "inf": np.inf, "huge": 1e30}


class Faulty:
    """Catch (or another of agentkit's own) whose reward or observation is bad at step number `at` of its life."""

    def __init__(self, seed: int, name: str = "catch", fault: str = "reward nan", at: int = 150):
        self._environment = envs.make(f"agentkit:{name}", seed=seed, raw=True)
        self._where, self._value = fault.split()
        self._at = at
        self._num_steps = 0

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def reset(self):
        return self._environment.reset()

    def step(self, action):
        timestep = self._environment.step(action)
        self._num_steps += 1
        if self._num_steps != self._at or "MENDED" in os.environ:
            return timestep
        if self._where == "reward":
            return timestep._replace(reward=BAD[self._value])
        observation = timestep.observation.copy()
        observation.flat[-1] = BAD[self._value]
        return timestep._replace(observation=observation)


def make(seed: int, **settings):
    return Faulty(seed, **settings)


def make_by_name(name: str, seed: int, **settings):
    del name
    return make(seed, **settings)
