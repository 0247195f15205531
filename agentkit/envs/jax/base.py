"""The interface of environments in JAX; this file loads no JAX."""

from __future__ import annotations

import abc
from typing import Any

import dm_env
import numpy as np

from agentkit import specs
from agentkit.types import Array, Nest

State = Any
"""A pytree of arrays: all that an environment keeps between two steps."""


class JaxEnvironment(abc.ABC):
    """Describes an environment by pure functions, to be compiled and mapped over many with `jax.vmap`.

    It has dm_env's specs and time steps, with three differences: the state is an argument and a result, randomness
    comes from a key, and a time step's fields are arrays, which are there at the first step, too (reward 0 and discount
    1). `agentkit.envs.jax.time_steps` makes them.

    A step after LAST counts for nothing: whoever steps it calls `reset` then. The compiled loop steps all environments
    at once, and drops the results of those, so a step must not fail there. LAST comes with the final observation of its
    own episode, by termination (discount 0) or truncation (discount 1).

    A frozen dataclass is the shortest way to write one. Equal ones are compiled once.

    Attributes:
        reset_pool: how many resets the training on the device computes for each round, from which those that it needs
            are drawn, where a reset is dear (physics); None computes each that is needed. A field of that name lets its
            user choose. See docs/on_device.md.
    """

    reset_pool: int | None = None

    @abc.abstractmethod
    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""

    @abc.abstractmethod
    def action_spec(self) -> Nest:
        """Returns the spec of the actions; continuous ones are in [-1, 1], to which the caller clips them."""

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards: float32 ``[]``."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts: float32 ``[]`` in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    @abc.abstractmethod
    def reset(self, key: Array) -> tuple[State, dm_env.TimeStep]:
        """Begins an episode.

        Args:
            key: PRNG key ``uint32[2]``.

        Returns:
            The state, and a time step of type FIRST.
        """

    @abc.abstractmethod
    def step(self, state: State, action: Nest, key: Array) -> tuple[State, dm_env.TimeStep]:
        """Takes an action.

        Args:
            state: that `reset` or `step` returned; after LAST the result is dropped.
            action: as `action_spec` says.
            key: PRNG key ``uint32[2]``.

        Returns:
            The next state, of equal shapes and dtypes, and a time step of type MID or LAST.
        """

    def render(self, state: State) -> np.ndarray:
        """Returns an image of a state, uint8 ``[H, W, 3]``, computed outside of JAX.

        Raises:
            NotImplementedError: this one cannot be drawn.
        """
        raise NotImplementedError(f"{type(self).__name__} has no render(state), and cannot be drawn.")
