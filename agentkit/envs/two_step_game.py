"""Two-step game: a team of two, of which the first agent chooses what both then play."""

from __future__ import annotations

from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import Environment, checked_action
from agentkit.types import Nest

_IDS = ("agent_1", "agent_2")
_PAYOFFS = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])


@final
class TwoStepGame(Environment):
    """Plays a game in which the greater return needs trust in the other: a team, as `TeamEnvironment` makes one.

    With its first action agent_1 chooses a matrix, and with their second actions both play it: the first always pays 7,
    the second [[0, 1], [1, 8]], by the actions of agent_1 (row) and agent_2 (column). The second step terminates.
    **Optimal return: 8**; who values actions as if the other's were random prefers 7. Random play's mean is 4.75.

    The game is that of Rashid et al. 2018 (QMIX, 1803.11485, section 5): a sum of the agents' values (VDN) cannot say
    what the second matrix pays, a monotonic mixture can.

    Observation: ``{"agents": {id: float32 [3]}, "state": float32 [3]}``, all of them one-hot: where the game is; zeros
    at its end. Actions: 0 or 1 of each agent, by id. The seed changes nothing.
    """

    def __init__(self, seed: int = 0):
        super().__init__(seed)
        self._place: int | None = 0

    def _start(self) -> dict[str, Nest]:
        self._place = 0
        return self._observation()

    def _advance(self, action: Nest) -> tuple[dict[str, Nest], float, bool]:
        row, column = (checked_action(action[agent], 2) for agent in _IDS)
        if self._place == 0:
            self._place = 1 + row
            return self._observation(), 0.0, False
        assert self._place is not None
        reward = float(_PAYOFFS[self._place - 1, row, column])
        self._place = None
        return self._observation(), reward, True

    def _observation(self) -> dict[str, Nest]:
        place = np.zeros(3, np.float32) if self._place is None else np.eye(3, dtype=np.float32)[self._place]
        return {"agents": {agent: place.copy() for agent in _IDS}, "state": place}

    def observation_spec(self) -> dict[str, Nest]:
        """Returns one-hot float32 ``[3]`` for each agent, and the same as the state."""
        place = specs.BoundedArray((3,), np.float32, 0.0, 1.0, "place")
        return {"agents": dict.fromkeys(_IDS, place), "state": place}

    def action_spec(self) -> dict[str, specs.DiscreteArray]:
        """Returns a choice of two for each agent."""
        return {agent: specs.DiscreteArray(2, dtype=np.int32, name=agent) for agent in _IDS}
