"""A game of two in JAX as one agent, which moves for whoever's turn it is; for the compiled loop."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.sides import DISCOUNTS, find_spec
from agentkit.types import LAST, AgentId, Array, Nest


@final
@dataclasses.dataclass(frozen=True)
class JaxBothSides(JaxEnvironment):
    """Makes one agent of the two of a game in turns, as `envs.multi_agent.both_sides.BothSides` does.

    That class says what the agent sees and is paid. In mid-game rewards are taken for those of a zero-sum game here.

    Attributes:
        environment: the game.

    Raises:
        SpecError: it has other than two agents, or they do not see and do the like.
    """

    environment: JaxTurnEnvironment

    def __post_init__(self) -> None:
        """Refuses games that one agent cannot play for both."""
        find_spec(self.environment.agent_specs(), type(self.environment).__name__)

    @property
    def reset_pool(self) -> int | None:  # type: ignore[override]
        """Returns that of the game."""
        return self.environment.reset_pool

    def observation_spec(self) -> Nest:
        """Returns the spec of what either sees."""
        return next(iter(self.environment.observation_spec().values()))

    def action_spec(self) -> Nest:
        """Returns the spec of what either does."""
        return next(iter(self.environment.action_spec().values()))

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[]`` in [-1, 1]."""
        return DISCOUNTS

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins a game, and shows it to who begins."""
        state, timestep = self.environment.reset(key)
        mover = self.environment.turn(state)
        return state, dm_env.TimeStep(
            timestep.step_type,
            self._of(timestep.reward, mover),
            self._of(timestep.discount, mover),
            self._of(timestep.observation, mover),
        )

    def step(self, state: Any, action: Nest, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Makes a move for whose turn it is, and shows the game to who moves next."""
        mover = self.environment.turn(state)
        actions = dict.fromkeys(self.environment.action_spec(), action)
        state, timestep = self.environment.step(state, actions, key)
        follows = jnp.where(timestep.step_type == LAST, 1 - mover, self.environment.turn(state))
        discount = self._of(timestep.discount, mover)
        return state, dm_env.TimeStep(
            timestep.step_type,
            self._of(timestep.reward, mover),
            jnp.where(follows == mover, discount, 0.0 - discount),
            self._of(timestep.observation, follows),
        )

    def render(self, state: Any) -> np.ndarray:
        """Returns an image of a state, as the game draws it."""
        return self.environment.render(state)

    def _of(self, field: dict[AgentId, Nest], number: Array) -> Nest:
        """Returns what one of the agents has; JAX may have sorted the field by their ids."""
        in_turn = (field[agent_id] for agent_id in self.environment.observation_spec())
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[number], *in_turn)
