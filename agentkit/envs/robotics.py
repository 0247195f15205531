"""Gymnasium-Robotics: Fetch, Shadow hand, mazes, Adroit, kitchen. The one file that imports gymnasium_robotics."""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import Any

from agentkit.envs import gymnasium, gymnasium_loading
from agentkit.errors import ConfigError, missing_extra

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of its dependencies.
        import gymnasium_robotics
except ImportError as error:
    raise missing_extra("gymnasium-robotics", "robotics") from error


def make(name: str, seed: int = 0, **kwargs: Any) -> gymnasium.GymnasiumEnvironment:
    """Makes a task such as ``PointMaze_UMaze`` or ``AdroitHandDoor`` with its own reward, goal and time limit.

    Tasks with a goal have the dictionary ``observation``, ``achieved_goal`` and ``desired_goal``, side by side for a
    network. ``PointMaze_UMazeDense`` and its like have the distance as reward.

    Args:
        name: with a version or without one, for the newest.
        seed: seeds the task.
        **kwargs: the task's own, such as ``max_episode_steps=100``.

    Raises:
        UnknownNameError: the package has no such task; proposes the nearest name.
        ConfigError: the task cannot be made with the mujoco that is installed: those of Fetch, the Shadow hand and the
            kitchen take mujoco 3.3.0, and not 3.17.
    """
    gymnasium_loading.register(gymnasium_robotics)
    found = gymnasium_loading.find("gymnasium_robotics", name, "task of gymnasium-robotics")
    try:
        environment = gymnasium_loading.load(found, **kwargs)
    except AssertionError as error:  # Its checks of joints, whose types compare otherwise in newer versions of mujoco.
        ours, theirs = (importlib.metadata.version(package) for package in ("gymnasium-robotics", "mujoco"))
        raise ConfigError(
            f"robotics:{name} cannot be made by gymnasium-robotics {ours} with mujoco {theirs}. Install mujoco 3.3.0 "
            "in a virtual environment without dm_control, or take a task that goes with both, such as "
            "robotics:PointMaze_UMaze."
        ) from error
    return gymnasium.GymnasiumEnvironment(environment, seed)
