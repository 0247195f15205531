"""Meta-World's tasks of a robot's arm (Yu et al. 2019, 1910.10897). The one file that imports metaworld."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

from agentkit.envs import gymnasium, gymnasium_loading
from agentkit.errors import missing_extra, unknown_name

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of its dependencies.
        import metaworld
except ImportError as error:
    raise missing_extra("metaworld", "metaworld") from error


def make(name: str, seed: int = 0, *, goals_seed: int = 0, **kwargs: Any) -> gymnasium.GymnasiumEnvironment:
    """Makes a task such as ``reach`` or ``door-open`` as the benchmark MT1 has it.

    Each episode has one of 50 goals, drawn at its start, and 500 steps; success is no end, and is in
    ``info["success"]``. Observations are 39 numbers: hand, gripper and objects now and a step before, and the goal.
    Rewards are shaped, from 0 to 10 a step.

    Args:
        name: with a version or without one, for the newest.
        seed: seeds the order of goals. Meta-World by itself takes no heed of a reset's seed.
        goals_seed: draws the 50 goals, which training and evaluation share.
        **kwargs: the task's own, such as ``terminate_on_success=True`` or ``reward_function_version="v1"``.

    Raises:
        UnknownNameError: there is no such task; proposes the nearest name.
    """
    tasks = {known.rpartition("-v")[0]: known for known in metaworld.ALL_V3_ENVIRONMENTS}
    full = tasks.get(name, name)
    if full not in tasks.values():
        near = difflib.get_close_matches(name, tasks, n=8, cutoff=0.4)
        raise unknown_name("Meta-World task", name, near or tasks)
    environment = gymnasium_loading.load("Meta-World/MT1", env_name=full, seed=goals_seed, **kwargs)
    task: Any = environment.unwrapped
    return gymnasium.GymnasiumEnvironment(gymnasium.seeded_by(environment, task.seed), seed)
