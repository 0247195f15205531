"""An actor that knows nothing: it draws its actions uniformly, and records nothing."""

from __future__ import annotations

from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.core import Actor
from agentkit.types import Nest


@final
class RandomActor(Actor):
    """Acts in one environment by `sample_legal_action`, as an opponent or a baseline."""

    def __init__(self, action_spec: Nest, seed: int = 0):
        """Takes the spec of the actions, and the seed that these follow from."""
        self._action_spec, self._seed, self._count = action_spec, seed, 0

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`."""
        self._count += 1
        return sample_legal_action(self._action_spec, observation, np.random.default_rng([self._seed, self._count]))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Records nothing."""

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """Records nothing."""

    def update(self, wait: bool = False) -> None:
        """Has no parameters to fetch."""

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns how many actions were drawn."""
        del mid_episode
        return {"count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._count = int(state["count"])

    def close(self) -> None:
        """Frees nothing."""


def sample_action(spec: Nest, rng: np.random.Generator) -> Nest:
    """Draws a uniformly random action of `spec`; what lacks a bound is as far from its other one as a normal number.

    A number without any is normal. What bounds a number is as `specs.is_finite_bound` says.
    """

    def sample(leaf: specs.Array) -> np.ndarray:
        if isinstance(leaf, specs.DiscreteArray):
            return rng.integers(leaf.num_values, size=leaf.shape, dtype=leaf.dtype)
        if not isinstance(leaf, specs.BoundedArray):
            return rng.normal(size=leaf.shape)
        if leaf.dtype.kind != "f":
            return rng.integers(leaf.minimum, leaf.maximum, leaf.shape, endpoint=True, dtype=leaf.dtype)
        if specs.has_finite_bounds(leaf):
            return rng.uniform(leaf.minimum, leaf.maximum, leaf.shape)
        return _sample_partly_bounded(leaf, rng)

    return tree.map_structure(lambda leaf: np.asarray(sample(leaf), leaf.dtype), spec)


def _sample_partly_bounded(spec: specs.BoundedArray, rng: np.random.Generator) -> np.ndarray:
    has_low, has_high = (specs.is_finite_bound(bound, spec.dtype) for bound in (spec.minimum, spec.maximum))
    low, high = (
        np.where(has, bound, 0).astype(np.float64) for has, bound in ((has_low, spec.minimum), (has_high, spec.maximum))
    )
    normal = rng.normal(size=spec.shape)
    return np.select(
        [has_low & has_high, has_low, has_high],
        [low + (high - low) * rng.random(spec.shape), low + np.abs(normal), high - np.abs(normal)],
        normal,
    )


def sample_legal_action(spec: Nest, observation: Nest, rng: np.random.Generator) -> Nest:
    """Draws a uniformly random action of `spec` among those that the observation's `action_mask`, if any, allows.

    A mask that allows none allows all, as in networks.
    """
    mask = specs.find_action_mask(observation, spec)
    if mask is None:
        return sample_action(spec, rng)
    legal = np.flatnonzero(mask)
    return np.asarray(rng.choice(legal), spec.dtype) if legal.size else sample_action(spec, rng)
