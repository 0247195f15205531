"""The DeepMind control suite from pixels, by DrQ-v2's protocol (Yarats et al. 2021, 2107.09645)."""

from __future__ import annotations

from typing import Any

from agentkit.envs import dm_control
from agentkit.errors import ConfigError
from agentkit.wrappers.action_repeat import ActionRepeat
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.pixels import Pixels

_CAMERAS = {"quadruped": 2}
"""Camera ids by domain, where camera 0 does not show the body."""


def make(
    name: str,
    seed: int = 0,
    *,
    size: int = 84,
    camera_id: int | None = None,
    action_repeat: int = 2,
    num_frames: int = 3,
    grayscale: bool = False,
    **kwargs: Any,
) -> FrameStack:
    """Makes a task whose observation is its last images, uint8 ``[84, 84, 9]``; an action lasts 2 steps of the suite.

    Rewards of the steps are added up, so returns are those of the suite, at most 1,000; an episode has 500 actions.

    Args:
        name: e.g. ``cheetah/run``.
        seed: seeds the task's generator.
        size: of the images, in pixels along both axes.
        camera_id: which camera draws them; None for 0, and 2 for quadruped, as in the paper.
        action_repeat: steps of the suite that an action lasts.
        num_frames: images that are stacked, the oldest first.
        grayscale: whether each has one channel, their luminance, in place of three.
        **kwargs: of `agentkit.envs.dm_control.make`.

    Raises:
        UnknownNameError: if the suite has no such task.
        ConfigError: MuJoCo cannot draw here, or a setting is impossible.
    """
    environment = dm_control.make(name, seed, **kwargs)
    camera = _CAMERAS.get(name.partition("/")[0], 0) if camera_id is None else camera_id
    count = environment.physics.model.ncam
    if not 0 <= camera < count:
        raise ConfigError(f"camera_id: expected 0 to {count - 1}, the cameras of {name}, found {camera}.")
    frames = FrameStack(Pixels(ActionRepeat(environment, action_repeat), size, camera, grayscale), num_frames)
    environment.render(size, size, camera)  # Where nothing can be drawn, it is said before a run begins.
    return frames
