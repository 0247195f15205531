"""The DeepMind control suite. The one file that imports dm_control."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any, final

import dm_env
import numpy as np

from agentkit.envs.base import check_within
from agentkit.envs.rendering import explain_import, prepare_mujoco
from agentkit.errors import DISTRIBUTION, MissingExtraError, missing_extra, unknown_name
from agentkit.types import Nest

try:
    with warnings.catch_warnings():
        # Without a display the renderer warns on import; nothing here renders unless asked to.
        warnings.simplefilter("ignore")
        from dm_control import _render as renderers
        from dm_control import suite
        from dm_control.suite import quadruped
except Exception as error:
    explain_import(error, "dm_control")
    if not isinstance(error, ImportError):
        raise
    if sys.version_info < (3, 13):
        raise missing_extra("dm_control", "dm-control") from error
    raise MissingExtraError(
        "dm_control is not installed. On Python 3.13 it takes two commands, since its labmaze has no wheel there (the "
        f"suite runs without): pip install '{DISTRIBUTION}[dm-control]' && pip install --no-deps dm_control"
    ) from error


def make(name: str, seed: int = 0, **kwargs: Any) -> DMControlEnvironment:
    """Calls ``suite.load(domain, task, **kwargs)`` for the name ``domain/task``.

    Seeds change episodes and never the plant: of ``lqr``, whose joints have a random stiffness, it is the one of
    ``task_kwargs={"random": 0}``, unless another is given.

    Args:
        name: e.g. ``cheetah/run``.
        seed: seeds the task's generator.
        **kwargs: of ``suite.load``: `task_kwargs`, `environment_kwargs`, `visualize_reward`.

    Raises:
        UnknownNameError: if the suite has no such task.
        ConfigError: its time limit is no number of seconds above 0.
    """
    domain, _, task = name.partition("/")
    if (domain, task) not in suite.ALL_TASKS:
        raise unknown_name("dm_control task", name, [f"{d}/{t}" for d, t in suite.ALL_TASKS])
    task_kwargs = dict(kwargs.pop("task_kwargs", None) or {})
    if "time_limit" in task_kwargs:
        check_within("task_kwargs: time_limit", task_kwargs["time_limit"], 0, above=True)
    with _without_deprecations():
        # Not by the seed, from which lqr would also draw the stiffness of its joints.
        made = DMControlEnvironment(suite.load(domain, task, task_kwargs={"random": 0} | task_kwargs, **kwargs))
    if "random" not in task_kwargs:
        made.reseed(seed)
    return made


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Hides what a newer MuJoCo says of each of the suite's own models, which no user can change."""

    def is_of_use(record: logging.LogRecord) -> bool:
        return "is deprecated" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_of_use)
    try:
        yield
    finally:
        logger.removeFilter(is_of_use)


def _use(backend: str | None) -> None:
    """Replaces the renderer that dm_control chose when it was imported, without having tried it."""
    if backend is not None and backend not in (renderers.BACKEND or ""):
        make = {"egl": renderers._import_egl, "osmesa": renderers._import_osmesa}[backend]
        renderers.Renderer, renderers.BACKEND = make(), backend


@final
class DMControlEnvironment(dm_env.Environment):
    """Adds `reseed` and `render` to a control suite environment, which is a dm_env environment already.

    The suite ends most episodes by its time limit: LAST with discount 1, a truncation.

    Args:
        environment: a `dm_control.rl.control.Environment`.

    Raises:
        ConfigError: the task draws at each reset, and there is neither a display nor a GL library that works.
    """

    def __init__(self, environment: Any):
        self._environment = environment
        self._ready_to_draw = False
        if isinstance(environment.task, quadruped.Escape):  # At each reset it hands its terrain to the renderer.
            self._prepare_to_draw()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._environment.task.random.seed(seed)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._environment.reset()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._environment.step(action)

    def observation_spec(self) -> Nest:
        """Returns a dict of specs."""
        return self._environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns a BoundedArray float64."""
        return self._environment.action_spec()

    def reward_spec(self) -> Nest:
        """Returns float64 scalar, in [0, 1] for every task of the suite."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns float64 scalar."""
        return self._environment.discount_spec()

    def render(self, height: int = 240, width: int = 320, camera_id: int = 0) -> np.ndarray:
        """Returns an image, uint8 ``[height, width, 3]``.

        Raises:
            ConfigError: there is neither a display nor a GL library that works.
        """
        self._prepare_to_draw(max(height, width))
        return self._environment.physics.render(height, width, camera_id=camera_id)

    def _prepare_to_draw(self, *pixels: int) -> None:
        """Picks the renderer before its first use."""
        if not self._ready_to_draw:
            _use(prepare_mujoco(self._environment.physics.model.ptr, *pixels))
            self._ready_to_draw = True

    def close(self) -> None:
        """Frees the physics."""
        self._environment.close()
