"""The last few observations as one."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper, check_count

_GRAY_PIXELS = 36
"""How many numbers along both axes are an image in gray, and no board or table."""

Join = Callable[[Sequence[np.ndarray]], np.ndarray]


@final
class FrameStack(ObservationWrapper):
    """Joins the last `num_frames` observations, oldest first, along images' channels, or else along the last axis.

    The first observation of an episode is repeated to fill the stack. Choices stay choices, of each frame, counted
    from 0. An action mask stays the newest one.

    Args:
        environment: the environment.
        num_frames: at least 1.
        flatten: whether to join along an existing axis, ``[H, W, C]`` to ``[H, W, C * num_frames]``, ``[C, H, W]`` to
            ``[C * num_frames, H, W]``. An image in gray, bytes ``[H, W]`` or anything from 36 x 36 on, becomes
            ``[H, W, num_frames]``. Images so small that a network would then take another axis for the channels become
            ``[num_frames, H, W, C]``, and scalars ``[num_frames]``. Otherwise there is a new last axis, ``[H, W, C,
            num_frames]``, which networks do not take for an image's channels: they have to be your own.
    """

    within_episode = True

    def __init__(self, environment: dm_env.Environment, num_frames: int, flatten: bool = True):
        super().__init__(environment)
        check_count("num_frames", num_frames)
        inner = environment.observation_spec()
        paths = tree.flatten_with_path(inner)
        self._num_frames = num_frames
        self._joins = [
            _newest if path[-1:] == (specs.ACTION_MASK,) else _make_join(leaf, num_frames, flatten)
            for path, leaf in paths
        ]
        self._single = specs.is_spec(inner)
        self._frames: deque[Nest] = deque(maxlen=num_frames)
        stacked = [self._stacked_spec(join, leaf) for join, (_, leaf) in zip(self._joins, paths, strict=True)]
        self._spec = tree.unflatten_as(inner, stacked)

    def _stacked_spec(self, join: Join, spec: specs.Array) -> specs.Array:
        shape = join([np.empty(spec.shape, spec.dtype)] * self._num_frames).shape
        if not isinstance(spec, specs.BoundedArray) or join is _newest:
            return spec if join is _newest else specs.Array(shape, spec.dtype, spec.name)
        bounds = [np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum)]
        low, high = (join([bound] * self._num_frames) for bound in bounds)
        if specs.num_choices(spec):
            return specs.Choices(shape, spec.dtype, high, spec.name)
        return specs.BoundedArray(shape, spec.dtype, low, high, spec.name)

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        newest = timestep.observation
        if timestep.first():
            self._frames.extend([newest] * self._num_frames)
        else:
            self._frames.append(newest)
        if self._single:
            return timestep._replace(observation=self._joins[0](list(self._frames)))
        columns = zip(*(tree.flatten(frame) for frame in self._frames), strict=True)
        stacked = [join(column) for join, column in zip(self._joins, columns, strict=True)]
        return timestep._replace(observation=tree.unflatten_as(newest, stacked))

    def observation_spec(self) -> Nest:
        """Returns the spec of the stacked observations."""
        return self._spec


def _make_join(spec: specs.Array, num_frames: int, flatten: bool) -> Join:
    """Returns the function that joins so many frames of a spec."""
    shape = tuple(spec.shape)
    if not flatten or not shape:
        return functools.partial(np.stack, axis=-1)
    is_gray = len(shape) == 2 and min(shape) >= (specs.MIN_PIXELS if spec.dtype == np.uint8 else _GRAY_PIXELS)
    if not is_gray and not specs.is_image(shape):
        return functools.partial(np.concatenate, axis=-1)
    channels_first = not is_gray and specs.is_channels_first(shape)
    join = functools.partial(np.stack if is_gray else np.concatenate, axis=-3 if channels_first else -1)
    if specs.is_channels_first(join([np.empty(shape, bool)] * num_frames).shape) == channels_first:
        return join
    if is_gray:
        return lambda frames: np.stack(frames)[..., None]
    return functools.partial(np.stack if len(shape) == 3 else np.concatenate, axis=0)


def _newest(frames: Sequence[np.ndarray]) -> np.ndarray:
    return frames[-1]
