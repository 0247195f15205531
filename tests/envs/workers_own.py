"""Environments for workers: importable there, as a user's own module is."""

import os
import pathlib
import time

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment


class Echo(Environment):
    """Says in its observation who it is, how far it is, and which action came; can be slow, or fail."""

    def __init__(self, seed=0, fault="", at=3, seconds=0.0):
        super().__init__(seed, max_steps=5)
        self.name = float(seed % 1000)
        self.fault, self.at, self.seconds = fault, at, seconds
        self.count = 0

    def _start(self):
        self.draw = self._rng.random()
        return self._observe({"a": np.int32(-1), "b": np.zeros(2, np.float32)})

    def _advance(self, action):
        self.count += 1
        if self.count == self.at:
            fail(self.fault)
        time.sleep(self.seconds)
        return self._observe(action), float(self._rng.random()), bool(self._rng.random() < 0.1)

    def _observe(self, action):
        return {
            "who": np.array([self.name, self.draw, self._num_steps], np.float64),
            "action": np.append(np.float32(action["b"]), np.float32(action["a"])),
            "image": np.full((3, 2), self._num_steps, np.uint8),
        }

    def observation_spec(self):
        return {
            "who": specs.Array((3,), np.float64),
            "action": specs.Array((3,), np.float32),
            "image": specs.BoundedArray((3, 2), np.uint8, 0, 255),
        }

    def action_spec(self):
        return {"a": specs.DiscreteArray(4, np.int32), "b": specs.BoundedArray((2,), np.float32, -1.0, 1.0)}


class Tidy(Echo):
    """Leaves a file named by its seed when it is closed."""

    def __init__(self, seed=0, folder="", **settings):
        super().__init__(seed, **settings)
        self.seed, self.folder = seed, folder

    @property
    def slow_value(self):
        time.sleep(600)

    def close(self):
        if self.folder:
            (pathlib.Path(self.folder) / str(self.seed)).touch()


class Named(Echo):
    """Has an argument that agentkit's own functions have, too."""

    def __init__(self, name, seed=0):
        super().__init__(seed)
        self.label = name


def fail(fault):
    if fault == "raise":
        raise ValueError("the door is stuck")
    if fault == "kill":
        os.kill(os.getpid(), 9)
    if fault == "exit":
        os._exit(3)
    if fault == "hang":
        time.sleep(600)


def sample(rng, num_envs):
    """Returns actions of `Echo` for so many environments."""
    return {"a": rng.integers(0, 4, num_envs, np.int32), "b": rng.uniform(-1, 1, (num_envs, 2)).astype(np.float32)}
