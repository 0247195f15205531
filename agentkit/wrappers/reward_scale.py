"""Rewards of another size, in training only."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import RewardWrapper


@final
class RewardScale(RewardWrapper):
    """Multiplies rewards by a number in training; evaluations go without it, and their returns stay the game's own.

    Works on one environment and on a batch. The training's own log has the return of scaled rewards as
    ``episode_return``, and the game's own as ``episode_raw_return``.

    Args:
        environment: the environment.
        scale: above 0.
    """

    def __init__(self, environment: dm_env.Environment, scale: float):
        super().__init__(environment)
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
            raise ConfigError(f"reward_scale: expected a scale above 0, found {scale!r}.")
        self._scale = scale

    def _change(self, reward: Nest) -> Nest:
        return tree.map_structure(self._scaled, reward)

    def _scaled(self, reward: np.ndarray) -> np.ndarray:
        return np.multiply(reward, self._scale, dtype=np.result_type(reward, np.float32))

    def reward_spec(self) -> Nest:
        """Returns the spec of the scaled rewards, of floats."""
        return tree.map_structure(self._scaled_spec, self._environment.reward_spec())

    def _scaled_spec(self, spec: specs.Array) -> specs.Array:
        dtype = self._scaled(np.zeros(spec.shape, spec.dtype)).dtype
        if not isinstance(spec, specs.BoundedArray):
            return specs.Array(spec.shape, dtype, spec.name)
        return specs.BoundedArray(spec.shape, dtype, spec.minimum * self._scale, spec.maximum * self._scale, spec.name)


def find_scale(wrappers: Iterable[Any]) -> float | None:
    """Returns by how much a run's wrappers multiply rewards; None where no `RewardScale` is among them.

    Args:
        wrappers: functions ``environment -> environment``; a `RewardScale` is there by a `functools.partial`.
    """
    scales = [
        wrapper.args[0] if wrapper.args else wrapper.keywords["scale"]
        for wrapper in wrappers
        if isinstance(wrapper, functools.partial) and wrapper.func is RewardScale
    ]
    return math.prod(scales) if scales else None
