"""Rewards within bounds, in training only."""

from __future__ import annotations

from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import RewardWrapper


@final
class ClipReward(RewardWrapper):
    """Clips rewards in training; evaluations go without it, and their returns stay the game's own.

    Works on one environment and on a batch, such as EnvPool's. The training's own log has the return of clipped rewards
    as ``episode_return``, and the game's own as ``episode_raw_return``.

    Args:
        environment: the environment.
        minimum: of a reward.
        maximum: above the minimum; where rewards are integers, both are whole.

    Raises:
        ConfigError: the bounds are none, or none of the rewards' dtype.
    """

    def __init__(self, environment: dm_env.Environment, minimum: float = -1.0, maximum: float = 1.0):
        super().__init__(environment)
        if not minimum < maximum:
            raise ConfigError(f"clip_reward: expected a minimum below the maximum, found {minimum} and {maximum}.")
        self._reward_spec = tree.map_structure(
            lambda spec: _clipped_spec(spec, minimum, maximum), environment.reward_spec()
        )

    def _change(self, reward: Nest) -> Nest:
        if specs.is_spec(self._reward_spec):
            return _clipped(reward, self._reward_spec)
        return tree.map_structure(_clipped, reward, self._reward_spec)

    def reward_spec(self) -> Nest:
        """Returns the spec of the clipped rewards."""
        return self._reward_spec


def _clipped(reward: Any, spec: specs.BoundedArray) -> np.ndarray:
    # In the spec's dtype: a reward may be a plain number, or an integer where floats are promised.
    return np.minimum(np.maximum(np.asarray(reward, spec.dtype), spec.minimum), spec.maximum)


def _clipped_spec(spec: specs.Array, minimum: float, maximum: float) -> specs.BoundedArray:
    for bound in (minimum, maximum):
        if spec.dtype.kind in "iub" and not (float(bound).is_integer() and _holds(spec.dtype, int(bound))):
            raise ConfigError(
                f"clip_reward: the rewards are {spec.dtype}, which has no {bound}. Give whole bounds that it has, or "
                "make the environment's rewards floats."
            )
    return specs.BoundedArray(spec.shape, spec.dtype, minimum, maximum, spec.name)


def _holds(dtype: np.dtype, number: int) -> bool:
    if dtype.kind == "b":
        return number in (0, 1)
    return int(np.iinfo(dtype).min) <= number <= int(np.iinfo(dtype).max)
