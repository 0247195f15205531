"""Gymnasium-Robotics: Fetch, Shadow hand, mazes, Adroit, kitchen. The one file that imports gymnasium_robotics."""

from __future__ import annotations

import warnings
from typing import Any

from agentkit.envs import gymnasium
from agentkit.errors import missing_extra

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of its dependencies.
        import gymnasium_robotics
except ImportError as error:
    raise missing_extra("gymnasium-robotics", "robotics") from error


def make(name: str, seed: int = 0, **kwargs: Any) -> gymnasium.GymnasiumEnvironment:
    """Makes a task such as ``FetchReach`` or ``PointMaze_UMaze`` with its own reward, goal and time limit.

    Tasks with a goal have the dictionary ``observation``, ``achieved_goal`` and ``desired_goal``, side by side for a
    network. ``FetchReachDense`` and its like have the distance as reward.

    Args:
        name: with a version or without one, for the newest.
        seed: seeds the task.
        **kwargs: the task's own, such as ``max_episode_steps=100``.

    Raises:
        UnknownNameError: the package has no such task; proposes the nearest name.
    """
    gymnasium.register(gymnasium_robotics)
    found = gymnasium.find("gymnasium_robotics", name, "task of gymnasium-robotics")
    return gymnasium.GymnasiumEnvironment(gymnasium.load(found, **kwargs), seed)
