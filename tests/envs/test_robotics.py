"""Gymnasium-Robotics."""

import importlib.metadata

import pytest

pytest.importorskip("gymnasium_robotics")

from agentkit import envs
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract

# Fetch and the Shadow hand take no newer mujoco than .ci/smoke has.
OF_OLDER_MUJOCO = ["FetchReach", "HandReach"] if importlib.metadata.version("mujoco").startswith("3.3.") else []


@pytest.mark.parametrize("name", ["AdroitHandDoor", "PointMaze_UMaze", *OF_OLDER_MUJOCO])
class TestRobotics(EnvironmentContract):
    num_steps = 12

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"robotics:{self.name}", seed=3, max_episode_steps=5)


def test_names():
    spec = envs.make("robotics:PointMaze_UMaze").observation_spec()
    assert {name: leaf.shape for name, leaf in spec.items()} == {
        "observation": (4,),
        "achieved_goal": (2,),
        "desired_goal": (2,),
    }
    with pytest.raises(UnknownNameError, match="Did you mean 'PointMaze_UMaze'"):
        envs.make("robotics:PointMazeUMaze")


def test_a_task_that_mujoco_is_too_new_for_is_refused_in_words(monkeypatch):
    def load(name, **kwargs):
        raise AssertionError

    monkeypatch.setattr("agentkit.envs.gymnasium_loading.load", load)
    with pytest.raises(ConfigError, match=r"robotics:FetchReach cannot be made .* with mujoco 3\..*PointMaze_UMaze"):
        envs.make("robotics:FetchReach")
