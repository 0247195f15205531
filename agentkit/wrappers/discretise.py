"""One choice in the place of continuous or several actions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper

_MAX_ACTIONS = 4_096


@final
class Discretise(EnvironmentWrapper):
    """Offers a grid over the actions as one choice, so that DQN plays Pendulum.

    Each continuous dimension has `bins` values, evenly from its minimum to its maximum, both included; an integer
    dimension (gymnasium's MultiDiscrete, too) has all of its values. The choices are all combinations of these, the
    last dimension fastest: ``bins`` to the power of the dimensions.

    Args:
        environment: one environment with one array of bounded actions.
        bins: values of each continuous dimension, or one number for each dimension; 2 at least.

    Raises:
        SpecError: the actions are none of that kind, or there would be more than 4,096 choices.
    """

    stateless = True

    def __init__(self, environment: dm_env.Environment, bins: int | Sequence[int] = 11):
        super().__init__(environment)
        inner = environment.action_spec()
        # Of integers any bounds will do: where there are too many values, that is said.
        is_bounded = specs.is_spec(inner) and (inner.dtype.kind in "iu" or specs.has_finite_bounds(inner))
        if not isinstance(inner, specs.BoundedArray) or isinstance(inner, specs.DiscreteArray) or not is_bounded:
            raise SpecError(
                f"discretise: expected one array of actions with finite bounds, found {inner!r:.300}. Give continuous "
                "ones bounds before: --wrapper 'bound_actions(minimum=-1, maximum=1)'."
            )
        levels = _levels(inner, bins)
        number = math.prod(len(values) for values in levels)
        if number > _MAX_ACTIONS:
            raise SpecError(
                f"discretise: {' x '.join(str(len(values)) for values in levels)} values make {number:,} choices; "
                f"expected at most {_MAX_ACTIONS:,}. Lower bins, or take an agent for such actions as they are (ppo)."
            )
        grid = np.array(list(itertools.product(*levels)), inner.dtype)
        self._actions = grid.reshape(number, *inner.shape)  # [number, ...]

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes the action of the grid that a number names."""
        return self._environment.step(self._actions[int(action)].copy())

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a DiscreteArray of the grid's size."""
        return specs.DiscreteArray(len(self._actions), dtype=np.int32, name="action")


def _levels(spec: specs.BoundedArray, bins: int | Sequence[int]) -> list[np.ndarray]:
    """Returns the values of each dimension."""
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in (spec.minimum, spec.maximum))
    if spec.dtype.kind in "iu":
        most = max(int(top) - int(bottom) for bottom, top in zip(low, high, strict=True))
        if most >= _MAX_ACTIONS:
            raise SpecError(
                f"discretise: expected at most {_MAX_ACTIONS:,} values, found {most + 1:,} in {spec!r:.200}."
            )
        return [np.arange(int(bottom), int(top) + 1) for bottom, top in zip(low, high, strict=True)]
    counts = list(bins) if isinstance(bins, Sequence) else [bins] * low.size
    if len(counts) != low.size or not all(type(count) is int and count >= 2 for count in counts):
        raise ConfigError(f"discretise: expected bins of 2 at least, one number or {low.size} of them, found {bins!r}.")
    # Halved, since the whole range may be larger than its dtype.
    halves = [np.linspace(*ends) for ends in zip(low / 2, high / 2, counts, strict=True)]
    return [np.clip(2 * each, *ends) for each, *ends in zip(halves, low, high, strict=True)]
