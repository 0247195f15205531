"""Tic-tac-toe: two agents in turns, with masks of the free squares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.errors import ConfigError, SpecError
from agentkit.types import AgentId, Nest

_PLAYERS = ("first", "second")
_COLOURS = ((230, 120, 40), (50, 100, 210))
_LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


@final
class TicTacToe(TurnEnvironment):
    """Lets "first" and "second" take squares in turns; three in a line win.

    The winner gets 1 and the other -1, who hears of it although it is not its turn; a draw gives 0. All end by
    termination. The first player can always draw, and so can the second.

    Observation: ``{"observation": float32 [9, 2], "action_mask": int8 [9]}``, one's own squares and the other's; 1 in
    the mask for a free square. Actions: the square, from 0 to 8, row by row. The state is float32 ``[9, 2]``, the
    squares of "first" and "second".

    Args:
        seed: of the moves that are chance's.
        random_moves: the most moves with which an episode begins that are chance's, from 0 to 4 (with more, a game may
            be over); how many is as likely from none to so many. Openings that good players do not choose are learned,
            too, then (exploring starts).
    """

    def __init__(self, seed: int = 0, random_moves: int = 0):
        if random_moves not in range(5):
            raise ConfigError(f"random_moves: expected a whole number from 0 to 4, found {random_moves!r}.")
        self._random_moves = random_moves
        seen = {
            "observation": specs.BoundedArray((9, 2), np.float32, 0.0, 1.0, "squares"),
            specs.ACTION_MASK: specs.BoundedArray((9,), np.int8, 0, 1, specs.ACTION_MASK),
        }
        spec = one_reward_spec(seen, specs.DiscreteArray(9, np.int32, "square"))
        super().__init__(dict.fromkeys(_PLAYERS, spec), seed)

    def _start(self) -> None:
        self._squares = np.zeros((9, 2), np.float32)
        self._player = 0
        self._over = False
        for _ in range(self._rng.integers(self._random_moves + 1)):
            free = np.flatnonzero(~self._squares.any(axis=1))
            self._squares[self._rng.choice(free), self._player] = 1.0
            self._player = 1 - self._player

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        player, square = self._player, checked_action(actions[_PLAYERS[self._player]], 9)
        if self._squares[square].any():
            raise SpecError(f"{_PLAYERS[player]!r} took square {square}, which is not free; see the action_mask.")
        self._squares[square, player] = 1.0
        won = bool(self._squares[_LINES, player].all(axis=1).any())
        self._over = won or bool(self._squares.any(axis=1).all())
        self._player = 1 - player
        if won:
            self._reward(_PLAYERS[player], 1.0)
            self._reward(_PLAYERS[1 - player], -1.0)
        if self._over:
            for agent_id in _PLAYERS:
                self._end(agent_id, self._observe(agent_id))

    def _acting(self) -> Iterable[AgentId]:
        return () if self._over else (_PLAYERS[self._player],)

    def _observe(self, agent_id: AgentId) -> Nest:
        own = _PLAYERS.index(agent_id)
        free = ~self._squares.any(axis=1)
        return {
            "observation": self._squares[:, [own, 1 - own]],
            specs.ACTION_MASK: free.astype(np.int8),
        }

    def state_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[9, 2]`` in [0, 1]."""
        return specs.BoundedArray((9, 2), np.float32, 0.0, 1.0, "state")

    def state(self) -> np.ndarray:
        """Returns the squares of both."""
        return self._squares.copy()

    def render(self) -> np.ndarray:
        """Returns the board as an image, uint8 ``[96, 96, 3]``: squares of "first" orange, of "second" blue."""
        board = np.full((9, 3), 255, np.uint8)
        for player, colour in enumerate(_COLOURS):
            board[self._squares[:, player] > 0] = colour
        image = np.kron(board.reshape(3, 3, 3), np.ones((32, 32, 1), np.uint8))
        image[::32] = image[:, ::32] = 0
        return image
