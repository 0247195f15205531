"""Tiny environments whose actions are more than one choice, or one choice of which some are ruled out."""

from typing import Any

import dm_env
import numpy as np

from agentkit import specs
from agentkit.agents import registry

NUM_ACTIONS, EPISODE = 5, 8


def environment_of(agent: str) -> str:
    """A small environment of agentkit's own with actions that a registered agent takes."""
    kinds = {"discrete": "agentkit:catch", "continuous": "agentkit:point_mass", "team": "team:agentkit:two_step_game"}
    return next(environment for kind, environment in kinds.items() if kind in registry.about(agent).actions)


def spec_for(agent: str, observation: Any) -> specs.EnvironmentSpec:
    """Specs with actions that a registered agent takes; of a team, whose agents all see `observation`."""
    takes = registry.about(agent).actions
    actions: Any = specs.DiscreteArray(3) if "discrete" in takes else specs.BoundedArray((2,), np.float32, -1, 1)
    if "team" in takes:
        ids = ("left", "right")
        actions, observation = dict.fromkeys(ids, specs.DiscreteArray(3)), {"agents": dict.fromkeys(ids, observation)}
    scalar = specs.Array((), np.float32)
    return specs.EnvironmentSpec(observation, actions, scalar, specs.BoundedArray((), np.float32, 0, 1))


class Rules(dm_env.Environment):
    """Two or more of five actions may be taken, others at each step; the reward says which of them it was.

    1 for the last one that may be taken, 0 for any other. What may not be taken raises ValueError. After an episode
    nothing may be taken, as in games.
    """

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self._left = 0
        self._allowed = np.zeros(NUM_ACTIONS, np.int8)

    def _observe(self) -> dict[str, Any]:
        self._allowed = np.zeros(NUM_ACTIONS, np.int8)
        if self._left:
            self._allowed[self._rng.permutation(NUM_ACTIONS)[: self._rng.integers(2, NUM_ACTIONS)]] = 1
        return {"action_mask": self._allowed, "hint": self._allowed.astype(np.float32)}

    def reset(self) -> dm_env.TimeStep:
        self._left = EPISODE
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        if not self._left:
            return self.reset()
        if not self._allowed[action]:
            raise ValueError(f"Action {action} is against the rules {self._allowed}.")
        reward = float(action == np.flatnonzero(self._allowed)[-1])
        self._left -= 1
        return (dm_env.transition if self._left else dm_env.termination)(reward, self._observe())

    def observation_spec(self) -> dict[str, specs.Array]:
        mask = specs.BoundedArray((NUM_ACTIONS,), np.int8, 0, 1, "action_mask")
        return {"action_mask": mask, "hint": specs.Array((NUM_ACTIONS,), np.float32, "hint")}

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(NUM_ACTIONS)


class Hands(dm_env.Environment):
    """Both hands must do what is seen: fingers (3 of 2 values each), a choice of 3, and two numbers in [0, 10].

    The reward is the share of these six that are right; of a number, how near it is.
    """

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self._left = 0
        self._wanted: dict[str, Any] = {}

    def _observe(self) -> np.ndarray:
        self._wanted = {
            "fingers": self._rng.integers(0, 2, 3),
            "hand": self._rng.integers(3),
            "place": self._rng.choice([2.0, 8.0], 2),
        }
        one_hot = np.eye(3)[self._wanted["hand"]]
        return np.concatenate([self._wanted["fingers"], one_hot, self._wanted["place"] / 10]).astype(np.float32)

    def reset(self) -> dm_env.TimeStep:
        self._left = EPISODE
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        if not self._left:
            return self.reset()
        for name, spec in self.action_spec().items():
            spec.validate(action[name])
        right = [*(action["fingers"] == self._wanted["fingers"]), action["hand"] == self._wanted["hand"]]
        near = 1.0 - np.abs(action["place"] - self._wanted["place"]) / 10
        self._left -= 1
        end = dm_env.transition if self._left else dm_env.termination
        return end(float(np.mean([*right, *near])), self._observe())

    def observation_spec(self) -> specs.Array:
        return specs.Array((8,), np.float32)

    def action_spec(self) -> dict[str, specs.Array]:
        return {
            "fingers": specs.BoundedArray((3,), np.int32, 0, 1, "fingers"),
            "hand": specs.DiscreteArray(3, np.int32, "hand"),
            "place": specs.BoundedArray((2,), np.float32, 0.0, 10.0, "place"),
        }
