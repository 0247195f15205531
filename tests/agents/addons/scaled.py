"""A point mass whose two coordinates are seen on scales a million apart, and what an agent does there."""

import numpy as np
import tree

from agentkit import specs
from agentkit.envs.point_mass import PointMass
from agentkit.wrappers.base import ObservationWrapper
from agentkit.wrappers.discretise import Discretise
from tests.wrappers.running_mean import RunningMean

SCALES = np.float32([1e3, 1e-3])


class Scaled(ObservationWrapper):
    """Shows the point's coordinates multiplied by 1,000 and by 0.001."""

    def _transform(self, timestep):
        return timestep._replace(observation=timestep.observation * SCALES)

    def observation_spec(self):
        return specs.Array((2,), np.float32, "position")


class Told:
    """Notes what the environment showed, and the action that came of it."""

    seen: list = []  # noqa: RUF012 (of all environments)

    def __init__(self, environment):
        self._environment, self._shown = environment, None

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def reset(self):
        return self._show(self._environment.reset())

    def step(self, action):
        Told.seen.append((self._shown, np.array(action)))
        return self._show(self._environment.step(action))

    def _show(self, timestep):
        self._shown = tree.map_structure(np.copy, timestep.observation)
        return timestep


def make_scaled(seed):
    return Scaled(PointMass(seed=seed))


def make_told(seed):
    return Told(make_scaled(seed))


def make_discrete(seed):
    return Discretise(make_scaled(seed), bins=3)


def make_with_own_statistics(seed):
    return RunningMean(make_scaled(seed))
