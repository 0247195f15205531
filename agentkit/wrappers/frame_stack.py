"""The last few observations as one."""

from __future__ import annotations

from collections import deque
from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper


@final
class FrameStack(ObservationWrapper):
    """Joins the last `num_frames` observations, oldest first, along the last axis.

    The first observation of an episode is repeated to fill the stack.

    Args:
        environment: the environment.
        num_frames: at least 1.
        flatten: whether to join along the existing last axis, ``[H, W, C]`` to
            ``[H, W, C * num_frames]``; otherwise there is a new one, ``[H, W, C, num_frames]``.
    """

    within_episode = True

    def __init__(self, environment: dm_env.Environment, num_frames: int, flatten: bool = True):
        super().__init__(environment)
        if num_frames < 1:
            raise ConfigError(f"num_frames: expected at least 1, found {num_frames}.")
        inner = environment.observation_spec()
        if flatten and any(leaf.shape == () for leaf in tree.flatten(inner)):
            raise SpecError("A scalar observation has no last axis to join along. Use flatten=False.")
        self._num_frames = num_frames
        self._join = np.concatenate if flatten else np.stack
        self._single = specs.is_spec(inner)
        self._frames: deque[Nest] = deque(maxlen=num_frames)
        self._spec = tree.map_structure(self._stacked_spec, inner)

    def _stacked_spec(self, spec: specs.Array) -> specs.Array:
        frame = np.empty(spec.shape, spec.dtype)
        shape = self._join([frame] * self._num_frames, axis=-1).shape
        if not isinstance(spec, specs.BoundedArray):
            return specs.Array(shape, spec.dtype, spec.name)
        bounds = [np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum)]
        low, high = (self._join([bound] * self._num_frames, axis=-1) for bound in bounds)
        return specs.BoundedArray(shape, spec.dtype, low, high, spec.name)

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.first():
            self._frames.extend([timestep.observation] * self._num_frames)
        else:
            self._frames.append(timestep.observation)
        if self._single:
            stacked = self._join(list(self._frames), axis=-1)  # [..., C * k] or [..., C, k]
        else:
            stacked = tree.map_structure(lambda *leaves: self._join(leaves, axis=-1), *self._frames)
        return timestep._replace(observation=stacked)

    def observation_spec(self) -> Nest:
        """Returns the spec of the stacked observations."""
        return self._spec
