"""Every agent learns as a policy of a game of several agents, and goes on from a checkpoint in mid-episode."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import tree

import agentkit
from agentkit import checkpoint, specs
from agentkit.agents import registry
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from tests.agents.test_action_masks import small

LENGTH = 7
SMALLER = {"critic_hidden_sizes": (8,), "head_sizes": (8,), "updates_per_step": 1.0}


class Follow(TurnEnvironment):
    """Two agents do what they see, a number in [-2, 2]; "late" is there from the second step to the last but one."""

    def __init__(self, seed: int = 0):
        seen = specs.BoundedArray((1,), np.float32, -2.0, 2.0, "target")
        spec = one_reward_spec(seen, specs.BoundedArray((1,), np.float32, -2.0, 2.0, "action"))
        super().__init__({"always": spec, "late": spec}, seed)

    def _start(self) -> None:
        self._time, self._target = 0, self._rng.uniform(-2.0, 2.0, 1).astype(np.float32)

    def _advance(self, actions: Mapping[str, Any]) -> None:
        for agent_id, action in actions.items():
            self._reward(agent_id, -abs(float(action[0] - self._target[0])))
        self._time, self._target = self._time + 1, self._rng.uniform(-2.0, 2.0, 1).astype(np.float32)
        if self._time == LENGTH - 1:
            self._end("late", self._target)
        if self._time == LENGTH:
            self._end("always", self._target, terminated=False)

    def _acting(self) -> Iterable[str]:
        return () if self._time == LENGTH else ("always", "late") if 0 < self._time < LENGTH - 1 else ("always",)

    def _observe(self, agent_id: str) -> np.ndarray:
        return self._target


GAMES: dict[str, Any] = {"discrete": "agentkit:tic_tac_toe", "continuous": Follow}
CASES = [
    (name, kind)
    for name in registry.names()
    for kind in GAMES
    if kind in registry.about(name).actions and registry.about(name).data != "offline"
]


def saved(folder: pathlib.Path) -> dict[str, Any]:
    found = checkpoint.read_latest(folder / "checkpoints")
    assert found is not None
    return found.state


@pytest.mark.one_case
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_it_learns_from_both_and_goes_on_to_the_bit(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    """By one policy for both, whose parameters differ from checkpoint to checkpoint."""
    agent = small(name, **SMALLER)

    def plan(folder: str, num_steps: int) -> agentkit.MultiAgentConfig:
        settings = {"policy_of": "shared", "evaluation_period": 0, "run_directory": tmp_path / folder}
        return agentkit.MultiAgentConfig(agent, GAMES[kind], num_steps, progress=False, **settings)

    agentkit.run(plan("parts", 90))
    before = saved(tmp_path / "parts")
    agentkit.run(plan("parts", 180), resume=True)
    agentkit.run(plan("whole", 180))
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    for part in ("learner", "actors", "loop", "counter"):
        tree.map_structure(np.testing.assert_array_equal, parts[part], whole[part])
    earlier, later = (state["learner"]["shared"] for state in (before, parts))
    assert 0 < earlier["num_updates"] < later["num_updates"]
    learned = [key for key in earlier["state"] if "['" in key and "target" not in key and "opt_state" not in key]
    still = [key for key in learned if np.array_equal(earlier["state"][key], later["state"][key])]
    assert learned and not still
