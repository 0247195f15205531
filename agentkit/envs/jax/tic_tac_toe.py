"""Tic-tac-toe in JAX: `agentkit.envs.multi_agent.tic_tac_toe`, for the compiled loop."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.boards import PLAYERS, check_random_moves, draw
from agentkit.envs.multi_agent.tic_tac_toe import LINES, MOST_RANDOM_MOVES, SEEN
from agentkit.types import AgentId, Array, Nest


class TicTacToeState(NamedTuple):
    """Holds the squares of both, float32 ``[9, 2]``, and the number of who is to move, int32 ``[]``."""

    squares: Array
    player: Array


@final
@dataclasses.dataclass(frozen=True)
class TicTacToe(JaxTurnEnvironment):
    """Lets "first" and "second" take squares in turns; equal to its twin, which says how it is played.

    Attributes:
        random_moves: the most moves with which an episode begins that are chance's, from 0 to 4.
    """

    random_moves: int = 0

    def __post_init__(self) -> None:
        """Refuses too many random moves."""
        check_random_moves(self.random_moves, MOST_RANDOM_MOVES)

    def observation_spec(self) -> dict[AgentId, Nest]:
        """Returns one's own squares and the other's, float32 ``[9, 2]``, and the mask, int8 ``[9]``."""
        return dict.fromkeys(PLAYERS, SEEN)

    def action_spec(self) -> dict[AgentId, specs.DiscreteArray]:
        """Returns the squares, from 0 to 8, row by row."""
        return dict.fromkeys(PLAYERS, specs.DiscreteArray(9, np.int32, "square"))

    def state_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[9, 2]`` in [0, 1]."""
        return specs.BoundedArray((9, 2), np.float32, 0.0, 1.0, "state")

    def global_state(self, state: TicTacToeState) -> Array:
        """Returns the squares of both."""
        return state.squares

    def turn(self, state: TicTacToeState) -> Array:
        """Returns who is to move."""
        return state.player

    def reset(self, key: Array) -> tuple[TicTacToeState, dm_env.TimeStep]:
        """Begins a game, with moves of chance's where there are to be some."""
        count_key, order_key = jax.random.split(key)
        num_moves = jax.random.randint(count_key, (), 0, self.random_moves + 1, jnp.int32)
        number = jnp.arange(9)
        squares = jnp.zeros((9, 2), jnp.float32)
        order = jax.random.permutation(order_key, 9)
        squares = squares.at[order, number % 2].set(jnp.where(number < num_moves, 1.0, 0.0))
        state = TicTacToeState(squares, num_moves % 2)
        return state, first_step_of(_observe(squares))

    def step(
        self, state: TicTacToeState, action: dict[AgentId, Array], key: Array
    ) -> tuple[TicTacToeState, dm_env.TimeStep]:
        """Takes the square of whose turn it is."""
        del key
        square = jnp.stack([action[player] for player in PLAYERS])[state.player]
        squares = state.squares.at[square, state.player].set(1.0)
        has_won = (squares[LINES] > 0).all(axis=1).any(axis=0)
        is_over = has_won.any() | (squares.sum() == 9)
        reward = has_won.astype(jnp.float32)
        rewards = dict(zip(PLAYERS, reward - reward[::-1], strict=True))
        return TicTacToeState(squares, 1 - state.player), next_step_of(_observe(squares), rewards, terminated=is_over)

    def render(self, state: TicTacToeState) -> np.ndarray:
        """Returns the board as an image, uint8 ``[96, 96, 3]``, as its twin draws it."""
        return draw(np.asarray(state.squares).reshape(3, 3, 2))


def _observe(squares: Array) -> dict[AgentId, Nest]:
    free = (squares.sum(axis=1) == 0).astype(jnp.int8)
    both = (squares, squares[:, ::-1])
    return {player: {"observation": own, specs.ACTION_MASK: free} for player, own in zip(PLAYERS, both, strict=True)}
