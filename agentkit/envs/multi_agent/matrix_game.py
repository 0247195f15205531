"""Matrix games: two agents choose at once, and a table says what each gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import check_size, checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.errors import ConfigError, unknown_name
from agentkit.types import AgentId, Nest

_TABLES = {
    "coordination": ([[2, 0], [0, 1]], [[2, 0], [0, 1]]),
    "prisoners_dilemma": ([[-1, -3], [0, -2]], [[-1, 0], [-3, -2]]),
    "matching_pennies": ([[1, -1], [-1, 1]], [[-1, 1], [1, -1]]),
    "climbing": ([[11, -30, 0], [-30, 7, 6], [0, 0, 5]],) * 2,  # Claus and Boutilier 1998.
}
_ROW, _COLUMN = "row", "column"


@final
class MatrixGame(TurnEnvironment):
    """Lets two agents, "row" and "column", choose together, some rounds of a game.

    Each sees what was chosen in the round before: float32 ``[R + C]``, one-hot, zeros at first. Both are terminated
    after the last round. The state is the number of rounds played over `rounds`, float32 ``[1]``.

    Args:
        game: "coordination" (best: 2 for both at (0, 0)), "prisoners_dilemma" (0 cooperates, 1 defects, which is the
            better answer to either), "matching_pennies", or "climbing" (Claus and Boutilier 1998: 11 at (0, 0), beside
            which there is -30); or two tables ``[R, C]``, what "row" and "column" get.
        rounds: of an episode.
        seed: is not used: nothing is random.
    """

    def __init__(self, game: str | tuple[object, object] = "coordination", rounds: int = 4, seed: int = 0):
        check_size("rounds", rounds)
        if isinstance(game, str) and game not in _TABLES:
            raise unknown_name("matrix game", game, _TABLES)
        row, column = (np.asarray(table, float) for table in (_TABLES[game] if isinstance(game, str) else game))
        if row.ndim != 2 or row.shape != column.shape or not row.size:
            raise ConfigError(f"game: expected two tables [R, C] of one shape, found {row.shape} and {column.shape}.")
        self._payoffs, self._rounds, self._shape = {_ROW: row, _COLUMN: column}, rounds, row.shape
        seen = specs.BoundedArray((sum(self._shape),), np.float32, 0.0, 1.0, "choices")
        choices = {_ROW: self._shape[0], _COLUMN: self._shape[1]}
        super().__init__(
            {
                agent_id: one_reward_spec(seen, specs.DiscreteArray(count, np.int32, "action"))
                for agent_id, count in choices.items()
            },
            seed,
        )

    def _start(self) -> None:
        self._played = 0
        self._seen = np.zeros(sum(self._shape), np.float32)

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        row, column = (checked_action(actions[i], n) for i, n in zip((_ROW, _COLUMN), self._shape, strict=True))
        self._played += 1
        self._seen = np.zeros(sum(self._shape), np.float32)
        self._seen[[row, self._shape[0] + column]] = 1.0
        for agent_id, table in self._payoffs.items():
            self._reward(agent_id, float(table[row, column]))
            if self._played == self._rounds:
                self._end(agent_id, self._observe(agent_id))

    def _acting(self) -> Iterable[AgentId]:
        return (_ROW, _COLUMN) if self._played < self._rounds else ()

    def _observe(self, agent_id: AgentId) -> np.ndarray:
        return self._seen.copy()

    def state_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[1]`` in [0, 1]."""
        return specs.BoundedArray((1,), np.float32, 0.0, 1.0, "state")

    def state(self) -> np.ndarray:
        """Returns which part of the rounds has been played."""
        return np.array([self._played / self._rounds], np.float32)
