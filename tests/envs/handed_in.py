"""Environments of a user's own, to hand in or to name by their import path."""

import gymnasium
import numpy as np
from gymnasium import spaces

from agentkit.envs.catch import Catch


class Thermostat(gymnasium.Env):
    """Keeps a temperature at a target; observations and actions are in no agent's units."""

    observation_space = spaces.Box(-50.0, 50.0, (1,), np.float64)
    action_space = spaces.Box(0.0, 10.0, (1,), np.float64)

    def __init__(self, target=20.0):
        self.target = target
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.temperature = self.np_random.uniform(0.0, 40.0)
        return np.array([self.temperature - self.target]), {}

    def step(self, action):
        self.actions.append(float(action[0]))
        self.temperature += float(action[0]) - 5.0
        error = self.temperature - self.target
        return np.array([np.clip(error, -50.0, 50.0)]), -abs(error), False, len(self.actions) % 20 == 0, {}


class Needy(Thermostat):
    """Has an argument without a default."""

    def __init__(self, power):
        super().__init__()
        self.power = power


def make(target):
    return Thermostat(target)


def make_seeded(seed, target=20.0):
    environment = Thermostat(target)
    environment.seed_given = seed
    return environment


def make_catch(rows=10):
    return Catch(rows=rows)


NOTHING = 3
