"""Gymnasium-Robotics."""

import pytest

pytest.importorskip("gymnasium_robotics")

from agentkit import envs
from agentkit.errors import UnknownNameError
from agentkit.testing.environment import EnvironmentContract

pytestmark = pytest.mark.one_stack


@pytest.mark.parametrize("name", ["FetchReach", "PointMaze_UMaze"])
class TestRobotics(EnvironmentContract):
    num_steps = 25

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"robotics:{self.name}", seed=3, max_episode_steps=10)


def test_names():
    spec = envs.make("robotics:FetchReach").observation_spec()
    assert {name: leaf.shape for name, leaf in spec.items()} == {
        "observation": (10,),
        "achieved_goal": (3,),
        "desired_goal": (3,),
    }
    with pytest.raises(UnknownNameError, match="Did you mean 'FetchReach'"):
        envs.make("robotics:FetchReech")
