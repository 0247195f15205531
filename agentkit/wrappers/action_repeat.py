"""One action for several steps of the simulator."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper, check_count


@final
class ActionRepeat(EnvironmentWrapper):
    """Repeats each action, sums the rewards and multiplies the discounts; stops early at LAST.

    With the environment's own discounts d (usually 1 until the end) the reward is
    r_1 + d_1 r_2 + d_1 d_2 r_3 + ... and the discount d_1 d_2 ... d_n. Rewards of integers become floats.

    Args:
        environment: the environment.
        num_repeats: at least 1; 1 changes nothing.
    """

    def __init__(self, environment: dm_env.Environment, num_repeats: int):
        super().__init__(environment)
        check_count("num_repeats", num_repeats)
        if not specs.is_spec(environment.discount_spec()):
            raise ConfigError("ActionRepeat expects one discount, found a nest of them.")
        self._num_repeats = num_repeats
        own = environment.reward_spec()
        self._reward_spec = own if num_repeats == 1 else tree.map_structure(_summed_spec, own)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action `num_repeats` times; after LAST it starts an episode instead."""
        timestep = self._environment.step(action)
        if timestep.first():
            return timestep
        reward, discount = timestep.reward, timestep.discount
        for _ in range(self._num_repeats - 1):
            if timestep.last():
                break
            timestep = self._environment.step(action)
            reward = tree.map_structure(lambda total, r, d=discount: total + d * r, reward, timestep.reward)
            discount = discount * timestep.discount
        if self._num_repeats > 1:
            reward = tree.map_structure(lambda s, total: np.asarray(total, s.dtype)[()], self._reward_spec, reward)
        return timestep._replace(reward=reward, discount=discount)

    def reward_spec(self) -> Nest:
        """Returns the spec of the sums, of floats and without bounds; of one step as it is."""
        return self._reward_spec


def _summed_spec(spec: specs.Array) -> specs.Array:
    return specs.Array(spec.shape, np.result_type(spec.dtype, np.float32), spec.name)
