"""Point mass in JAX: steer a point to the origin."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.base import check_size
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.types import Array


class PointMassState(NamedTuple):
    """Holds the position, float32 ``[D]``, and the steps of the episode so far, int32 ``[]``."""

    position: Array
    num_steps: Array


@final
@dataclasses.dataclass(frozen=True)
class PointMass(JaxEnvironment):
    """Moves a point as `agentkit.envs.point_mass.PointMass` does, which says how, but in single precision.

    Attributes:
        num_dimensions: D.
        speed: of a full action, along each axis.
        max_steps: after which an episode is truncated.
    """

    num_dimensions: int = 2
    speed: float = 0.25
    max_steps: int = 20

    def __post_init__(self) -> None:
        """Refuses impossible sizes."""
        check_size("num_dimensions", self.num_dimensions)
        check_size("max_steps", self.max_steps)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[D]`` in [-1, 1]."""
        return specs.BoundedArray((self.num_dimensions,), np.float32, -1.0, 1.0, "position")

    def action_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[D]`` in [-1, 1]."""
        return specs.BoundedArray((self.num_dimensions,), np.float32, -1.0, 1.0, "action")

    def reset(self, key: Array) -> tuple[PointMassState, dm_env.TimeStep]:
        """Begins anywhere in the square."""
        position = jax.random.uniform(key, (self.num_dimensions,), jnp.float32, -1.0, 1.0)
        return PointMassState(position, jnp.int32(0)), first_step(position)

    def step(self, state: PointMassState, action: Array, key: Array) -> tuple[PointMassState, dm_env.TimeStep]:
        """Moves the point; the reward is minus its distance from the origin, divided by sqrt(D)."""
        del key  # Only the start is random.
        move = self.speed * jnp.clip(action, -1.0, 1.0)
        position = jnp.clip(state.position + move, -1.0, 1.0)
        new = PointMassState(position, state.num_steps + 1)
        reward = -jnp.sqrt(jnp.mean(position**2))
        return new, next_step(position, reward, truncated=new.num_steps >= self.max_steps)
