"""Two-step game in JAX: `agentkit.envs.multi_agent.two_step_game`, for the compiled loop."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import dm_env
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.multi_agent.two_step_game import AGENT_IDS, PAYOFFS
from agentkit.types import AgentId, Array


@final
@dataclasses.dataclass(frozen=True)
class TwoStepGame(JaxMultiAgentEnvironment):
    """Lets "agent_1" choose a matrix, which both then play; equal to its twin, which says what is in it."""

    def observation_spec(self) -> dict[AgentId, specs.Array]:
        """Returns float32 ``[3]`` in [0, 1] of each: where the game is, one-hot; zeros at its end."""
        return dict.fromkeys(AGENT_IDS, specs.BoundedArray((3,), np.float32, 0.0, 1.0, "place"))

    def action_spec(self) -> dict[AgentId, specs.Array]:
        """Returns two choices of each."""
        return dict.fromkeys(AGENT_IDS, specs.DiscreteArray(2, np.int32, "action"))

    def state_spec(self) -> specs.Array:
        """Returns the spec of the observations: both see all."""
        return self.observation_spec()[AGENT_IDS[0]]

    def global_state(self, state: Array) -> Array:
        """Returns where the game is."""
        return jnp.eye(4, 3)[state]

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins a game; nothing is random."""
        del key
        place = jnp.int32(0)
        return place, first_step_of(self._observe(place))

    def step(self, state: Array, action: dict[AgentId, Array], key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes both actions; the game is over after two steps."""
        del key
        row, column = (action[agent_id] for agent_id in AGENT_IDS)
        is_over = state > 0
        payoff = jnp.asarray(PAYOFFS, jnp.float32)[jnp.maximum(state, 1) - 1, row, column]
        place = jnp.where(is_over, 3, 1 + row).astype(jnp.int32)
        reward = jnp.where(is_over, payoff / 2, 0.0)
        return place, next_step_of(self._observe(place), dict.fromkeys(AGENT_IDS, reward), terminated=is_over)

    def _observe(self, place: Array) -> dict[AgentId, Array]:
        return dict.fromkeys(AGENT_IDS, self.global_state(place))
