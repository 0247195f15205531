"""CartPole in JAX: balance a pole on a cart."""

from __future__ import annotations

import dataclasses
import math
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

_GRAVITY, _FORCE, _SECONDS = 9.8, 10.0, 0.02
_MASS_OF_POLE, _MASS, _HALF_LENGTH = 0.1, 1.1, 0.5
_FARTHEST, _STEEPEST = 2.4, 12 * math.pi / 180


class CartPoleState(NamedTuple):
    """Holds where the cart is.

    Attributes:
        position: of the cart, its velocity, the pole's angle and its angular velocity, float32 ``[4]``.
        num_steps: of the episode so far, int32 ``[]``.
    """

    position: Array
    num_steps: Array


@final
@dataclasses.dataclass(frozen=True)
class CartPole(JaxEnvironment):
    """Pushes a cart to the left or to the right, so that the pole on it stays up; gymnasium's CartPole-v1.

    Reward is 1 a step. An episode terminates when the cart is beyond 2.4 or the pole beyond 12 degrees, and is
    truncated after `max_steps`. **Best return: 500** with the default; a random policy's mean is about 22.

    Observation: float32 ``[4]``, see `CartPoleState`. Actions: 0 left, 1 right. The state is single precision, and
    gymnasium's double.

    Barto, Sutton and Anderson 1983 (Neuronlike adaptive elements that can solve difficult learning control problems).

    Attributes:
        max_steps: after which an episode is truncated.
    """

    max_steps: int = 500

    def __post_init__(self) -> None:
        """Refuses an impossible number of steps."""
        check_size("max_steps", self.max_steps)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[4]``, with gymnasium's bounds."""
        most = np.array([2 * _FARTHEST, np.inf, 2 * _STEEPEST, np.inf], np.float32)
        return specs.BoundedArray((4,), np.float32, -most, most, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of the actions: 0 left, 1 right."""
        return specs.DiscreteArray(2, dtype=np.int32, name="action")

    def reset(self, key: Array) -> tuple[CartPoleState, dm_env.TimeStep]:
        """Begins near the middle, with all four numbers uniform in [-0.05, 0.05]."""
        position = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return CartPoleState(position, jnp.int32(0)), first_step(position)

    def step(self, state: CartPoleState, action: Array, key: Array) -> tuple[CartPoleState, dm_env.TimeStep]:
        """Pushes for 0.02 s, by Euler's method."""
        del key  # Nothing is random here.
        _, velocity, angle, angular_velocity = state.position
        force = jnp.where(action == 1, _FORCE, -_FORCE)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pushed = (force + _MASS_OF_POLE * _HALF_LENGTH * angular_velocity**2 * sin) / _MASS
        angular = (_GRAVITY * sin - cos * pushed) / (_HALF_LENGTH * (4.0 / 3.0 - _MASS_OF_POLE * cos**2 / _MASS))
        acceleration = pushed - _MASS_OF_POLE * _HALF_LENGTH * angular * cos / _MASS
        change = jnp.stack([velocity, acceleration, angular_velocity, angular])
        new = CartPoleState(state.position + _SECONDS * change, state.num_steps + 1)
        terminated = (jnp.abs(new.position[0]) > _FARTHEST) | (jnp.abs(new.position[2]) > _STEEPEST)
        return new, next_step(new.position, 1.0, terminated, new.num_steps >= self.max_steps)
