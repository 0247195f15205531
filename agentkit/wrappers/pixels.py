"""Images in the place of observations."""

from __future__ import annotations

import functools
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.wrappers.area import area_weights, average_rows, luminance
from agentkit.wrappers.base import ObservationWrapper, check_count
from agentkit.wrappers.film import draw


@final
class Pixels(ObservationWrapper):
    """Shows the agent what the environment's ``render`` draws, and nothing else.

    dm_control draws in this size; any other environment's image is averaged down, or repeated up, to it. Stack frames
    around it, so that movement can be seen: ``--wrapper pixels --wrapper "frame_stack(num_frames=3)"``. Environments of
    gymnasium draw with ``--env-set render_mode=rgb_array``.

    Args:
        environment: one with ``render() -> uint8 [H, W, 3]``, or ``[H, W]`` in grey.
        size: of the images, in pixels along both axes.
        camera_id: which camera of a dm_control task; None for the environment's own view.
        grayscale: whether the images have one channel, their luminance; an update then costs half or less.

    Raises:
        ConfigError: it cannot render, or a setting is impossible; at a step, what it draws is no image.
    """

    stateless = True

    def __init__(
        self,
        environment: dm_env.Environment,
        size: int = 84,
        camera_id: int | None = None,
        grayscale: bool = False,
    ):
        super().__init__(environment)
        if not callable(getattr(environment, "render", None)):
            raise ConfigError(f"pixels: expected an environment with render(), found {type(environment).__name__}.")
        check_count("pixels: size", size)
        self._size, self._grayscale = size, grayscale
        self._arguments: dict[str, Any] = {} if camera_id is None else {"camera_id": camera_id}
        if _draws_any_size(environment):
            self._arguments |= {"height": size, "width": size}
        elif camera_id is not None:
            raise ConfigError("pixels: only dm_control has a camera_id. Leave it out.")

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        render = self._environment.render  # type: ignore[attr-defined]
        resized = _resized(draw(functools.partial(render, **self._arguments)), self._size)
        if self._grayscale:
            resized = np.rint(luminance(resized)).astype(np.uint8)[..., None]
        return timestep._replace(observation=resized)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns uint8 ``[size, size, 3]``, or ``[size, size, 1]`` in grey."""
        return specs.BoundedArray((self._size, self._size, 1 if self._grayscale else 3), np.uint8, 0, 255, "pixels")


def _draws_any_size(environment: Any) -> bool:
    """Returns whether it is, inside of its wrappers, an environment of dm_control."""
    while hasattr(environment, "environment"):
        environment = environment.environment
    return hasattr(environment, "physics")


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    """Returns an image ``[size, size, 3]``, an array of its own."""
    if image.shape == (size, size, 3):
        return np.array(image, np.uint8)
    rows, columns = (area_weights(num_in, size) for num_in in image.shape[:2])
    small = average_rows(np.swapaxes(average_rows(image, rows), 0, 1), columns)  # [W, H, 3]
    return np.rint(np.swapaxes(small, 0, 1)).astype(np.uint8)
