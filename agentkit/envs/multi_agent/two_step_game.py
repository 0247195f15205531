"""Two-step game: the first agent chooses what both then play, and the better choice needs trust in the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from agentkit import specs
from agentkit.envs.base import checked_action
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.types import AgentId, Nest

AGENT_IDS = ("agent_1", "agent_2")
PAYOFFS = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])
"""What both together get: by matrix, by agent_1's action, by agent_2's."""


@final
class TwoStepGame(TurnEnvironment):
    """Lets "agent_1" choose a matrix with its first action, which both then play with their second ones.

    The first matrix always pays 7, the second [[0, 1], [1, 8]] by the actions of agent_1 (row) and agent_2 (column),
    half of it to each. Both terminate after two steps. **Optimal return of both together: 8**; who values actions as if
    the other's were random prefers 7. Random play's mean is 4.75.

    The game is that of Rashid et al. 2018 (QMIX, 1803.11485, section 5): a sum of the agents' values (VDN) cannot say
    what the second matrix pays, a monotonic mixture can.

    Observation, and the state: float32 ``[3]``, one-hot: where the game is; zeros at its end. Actions: 0 or 1.

    Args:
        seed: is not used: nothing is random.
    """

    def __init__(self, seed: int = 0):
        spec = one_reward_spec(self.state_spec(), specs.DiscreteArray(2, np.int32, "action"))
        super().__init__(dict.fromkeys(AGENT_IDS, spec), seed)

    def _start(self) -> None:
        self._place = 0

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        row, column = (checked_action(actions[agent_id], 2) for agent_id in AGENT_IDS)
        if self._place == 0:
            self._place = 1 + row
            return
        payoff, self._place = PAYOFFS[self._place - 1, row, column], 3
        for agent_id in AGENT_IDS:
            self._reward(agent_id, float(payoff / 2))
            self._end(agent_id, self.state())

    def _acting(self) -> Iterable[AgentId]:
        return AGENT_IDS if self._place < 3 else ()

    def _observe(self, agent_id: AgentId) -> np.ndarray:
        return self.state()

    def state_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[3]`` in [0, 1]."""
        return specs.BoundedArray((3,), np.float32, 0.0, 1.0, "place")

    def state(self) -> np.ndarray:
        """Returns where the game is, one-hot; zeros at its end."""
        return np.eye(4, 3, dtype=np.float32)[self._place]
