"""Connect Four in JAX: two agents in turns, with masks of the columns that have room."""

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
from agentkit.types import AgentId, Array, Nest

_ROWS, _COLUMNS = 6, 7


class ConnectFourState(NamedTuple):
    """Holds the pieces of both, float32 ``[6, 7, 2]``, and the number of who is to move, int32 ``[]``."""

    pieces: Array
    player: Array


@final
@dataclasses.dataclass(frozen=True)
class ConnectFour(JaxTurnEnvironment):
    """Lets "first" and "second" drop pieces into 7 columns in turns; four in a line win: a row, a column, a diagonal.

    The winner gets 1 and the other -1; a board that is full without is a draw and gives 0. All end by termination. Who
    plays first wins, where both play perfectly (Allis 1988).

    Observation: ``{"observation": float32 [6, 7, 2], "action_mask": int8 [7]}``, one's own pieces and the other's, the
    highest row first; 1 in the mask for a column that has room. Actions: the column, from 0 to 6. The state is float32
    ``[6, 7, 2]``, the pieces of "first" and "second".

    Attributes:
        random_moves: the most moves with which an episode begins that are chance's, from 0 to 6 (with more, a game may
            be over); how many is as likely from none to so many.
    """

    random_moves: int = 0

    def __post_init__(self) -> None:
        """Refuses too many random moves."""
        check_random_moves(self.random_moves, 6)

    def observation_spec(self) -> dict[AgentId, Nest]:
        """Returns one's own pieces and the other's, float32 ``[6, 7, 2]``, and the mask, int8 ``[7]``."""
        seen = {
            "observation": specs.BoundedArray((_ROWS, _COLUMNS, 2), np.float32, 0.0, 1.0, "pieces"),
            specs.ACTION_MASK: specs.BoundedArray((_COLUMNS,), np.int8, 0, 1, specs.ACTION_MASK),
        }
        return dict.fromkeys(PLAYERS, seen)

    def action_spec(self) -> dict[AgentId, specs.DiscreteArray]:
        """Returns the columns, from 0 to 6."""
        return dict.fromkeys(PLAYERS, specs.DiscreteArray(_COLUMNS, np.int32, "column"))

    def state_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[6, 7, 2]`` in [0, 1]."""
        return specs.BoundedArray((_ROWS, _COLUMNS, 2), np.float32, 0.0, 1.0, "state")

    def global_state(self, state: ConnectFourState) -> Array:
        """Returns the pieces of both."""
        return state.pieces

    def turn(self, state: ConnectFourState) -> Array:
        """Returns who is to move."""
        return state.player

    def reset(self, key: Array) -> tuple[ConnectFourState, dm_env.TimeStep]:
        """Begins a game, with moves of chance's where there are to be some."""
        count_key, column_key = jax.random.split(key)
        num_moves = jax.random.randint(count_key, (), 0, self.random_moves + 1, jnp.int32)
        # No column is full before the seventh move, so each is as likely at each of them.
        columns = jax.random.randint(column_key, (self.random_moves,), 0, _COLUMNS)
        pieces = jnp.zeros((_ROWS, _COLUMNS, 2), jnp.float32)
        for number in range(self.random_moves):
            pieces = jnp.where(number < num_moves, _drop(pieces, columns[number], number % 2), pieces)
        return ConnectFourState(pieces, num_moves % 2), first_step_of(_observe(pieces))

    def step(
        self, state: ConnectFourState, action: dict[AgentId, Array], key: Array
    ) -> tuple[ConnectFourState, dm_env.TimeStep]:
        """Drops a piece of whose turn it is."""
        del key
        column = jnp.stack([action[player] for player in PLAYERS])[state.player]
        pieces = _drop(state.pieces, column, state.player)
        has_won = _has_four(pieces > 0)
        is_over = has_won.any() | (pieces.sum() == _ROWS * _COLUMNS)
        reward = has_won.astype(jnp.float32)
        rewards = dict(zip(PLAYERS, reward - reward[::-1], strict=True))
        return ConnectFourState(pieces, 1 - state.player), next_step_of(_observe(pieces), rewards, terminated=is_over)

    def render(self, state: ConnectFourState) -> np.ndarray:
        """Returns the board as an image, uint8 ``[192, 224, 3]``: pieces of "first" orange, of "second" blue."""
        return draw(np.asarray(state.pieces))


def _drop(pieces: Array, column: Array, player: Array | int) -> Array:
    """Returns the pieces with one more, upon those that are in the column."""
    row = _ROWS - 1 - pieces[:, column].sum().astype(jnp.int32)
    return pieces.at[row, column, player].set(1.0)


def _has_four(pieces: Array) -> Array:
    """Returns whether each player has four in a line, bool ``[2]``, of bool ``[6, 7, 2]``."""

    def along(board: Array, down: int, right: int) -> Array:
        height, width = _ROWS - 3 * down, _COLUMNS - 3 * right
        four = jnp.stack([board[i * down : i * down + height, i * right : i * right + width] for i in range(4)])
        return four.all(axis=0).any(axis=(0, 1))

    return along(pieces, 0, 1) | along(pieces, 1, 0) | along(pieces, 1, 1) | along(pieces[:, ::-1], 1, 1)


def _observe(pieces: Array) -> dict[AgentId, Nest]:
    has_room = (pieces[0].sum(axis=1) == 0).astype(jnp.int8)
    both = (pieces, pieces[..., ::-1])
    return {
        player: {"observation": own, specs.ACTION_MASK: has_room} for player, own in zip(PLAYERS, both, strict=True)
    }
