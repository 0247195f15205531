"""Tic-tac-toe: two agents in turns, with masks of the free squares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.envs.multi_agent.boards import PLAYERS, check_random_moves, draw
from agentkit.errors import SpecError
from agentkit.types import AgentId, Nest

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
"""The squares of each line, int ``[8, 3]``."""

MOST_RANDOM_MOVES = 4
"""With more moves of chance's than these, a game may be over before it begins."""

SEEN = {
    "observation": specs.BoundedArray((9, 2), np.float32, 0.0, 1.0, "squares"),
    specs.ACTION_MASK: specs.BoundedArray((9,), np.int8, 0, 1, specs.ACTION_MASK),
}
"""The specs of what a player sees."""


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
        check_random_moves(random_moves, MOST_RANDOM_MOVES)
        self._random_moves = random_moves
        spec = one_reward_spec(SEEN, specs.DiscreteArray(9, np.int32, "square"))
        super().__init__(dict.fromkeys(PLAYERS, spec), seed)

    def _start(self) -> None:
        self._squares = np.zeros((9, 2), np.float32)
        self._player = 0
        self._over = False
        for _ in range(self._rng.integers(self._random_moves + 1)):
            free = np.flatnonzero(~self._squares.any(axis=1))
            self._squares[self._rng.choice(free), self._player] = 1.0
            self._player = 1 - self._player

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        player, square = self._player, checked_action(actions[PLAYERS[self._player]], 9)
        if self._squares[square].any():
            raise SpecError(f"{PLAYERS[player]!r} took square {square}, which is not free; see the action_mask.")
        self._squares[square, player] = 1.0
        won = bool(self._squares[LINES, player].all(axis=1).any())
        self._over = won or bool(self._squares.any(axis=1).all())
        self._player = 1 - player
        if won:
            self._reward(PLAYERS[player], 1.0)
            self._reward(PLAYERS[1 - player], -1.0)
        if self._over:
            for agent_id in PLAYERS:
                self._end(agent_id, self._observe(agent_id))

    def _acting(self) -> Iterable[AgentId]:
        return () if self._over else (PLAYERS[self._player],)

    def _observe(self, agent_id: AgentId) -> Nest:
        own = PLAYERS.index(agent_id)
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
        return draw(self._squares.reshape(3, 3, 2))
