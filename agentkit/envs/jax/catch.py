"""Catch in JAX: move a paddle under a falling ball."""

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


class CatchState(NamedTuple):
    """Holds the ball's row and column and the paddle's column, int32 ``[]``."""

    row: Array
    ball: Array
    paddle: Array


@final
@dataclasses.dataclass(frozen=True)
class Catch(JaxEnvironment):
    """Drops a ball as `agentkit.envs.catch.Catch` does, which says how it is played.

    Attributes:
        rows: of the board.
        columns: likewise.
    """

    rows: int = 10
    columns: int = 5

    def __post_init__(self) -> None:
        """Refuses an impossible board."""
        check_size("rows", self.rows, 2)
        check_size("columns", self.columns)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[rows, columns]`` in [0, 1]."""
        return specs.BoundedArray((self.rows, self.columns), np.float32, 0.0, 1.0, "board")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of the actions: 0 left, 1 stay, 2 right."""
        return specs.DiscreteArray(3, dtype=np.int32, name="action")

    def reset(self, key: Array) -> tuple[CatchState, dm_env.TimeStep]:
        """Puts the ball into the first row, in a random column, and the paddle into the middle."""
        ball = jax.random.randint(key, (), 0, self.columns, jnp.int32)
        state = CatchState(jnp.int32(0), ball, jnp.int32(self.columns // 2))
        return state, first_step(self._board(state))

    def step(self, state: CatchState, action: Array, key: Array) -> tuple[CatchState, dm_env.TimeStep]:
        """Moves the paddle, and the ball one row down."""
        del key  # Only the start is random.
        paddle = jnp.clip(state.paddle + action - 1, 0, self.columns - 1).astype(jnp.int32)
        state = CatchState(state.row + 1, state.ball, paddle)
        terminated = state.row == self.rows - 1
        reward = jnp.where(terminated, jnp.where(paddle == state.ball, 1.0, -1.0), 0.0)
        return state, next_step(self._board(state), reward, terminated)

    def _board(self, state: CatchState) -> Array:
        board = jnp.zeros((self.rows, self.columns), jnp.float32)
        return board.at[state.row, state.ball].set(1.0).at[-1, state.paddle].set(1.0)

    def render(self, state: CatchState) -> np.ndarray:
        """Returns the board as an image, uint8 ``[8 rows, 8 columns, 3]``."""
        image = (np.asarray(self._board(state)) * 255).astype(np.uint8)
        return np.repeat(np.kron(image, np.ones((8, 8), np.uint8))[..., None], 3, axis=-1)
