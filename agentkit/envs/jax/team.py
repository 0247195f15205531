"""A team in JAX as one agent: several agents that act together, for agents of joint items in the compiled loop."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import dm_env
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.errors import SpecError
from agentkit.types import LAST, AgentId, Array, Nest


@final
@dataclasses.dataclass(frozen=True)
class JaxTeam(JaxEnvironment):
    """Makes one agent of all agents of an environment, as `envs.multi_agent.team.TeamEnvironment` does.

    That class says what a team sees, does and is paid. All agents act to the end here; there, those that terminate are
    not active. Where some terminate and others are cut off, the discount is that of the others. Discounts that differ
    otherwise are refused there; compiled code cannot refuse them, and takes the largest.

    Attributes:
        environment: of the agents.

    Raises:
        SpecError: its agents act in turns.
    """

    environment: JaxMultiAgentEnvironment

    def __post_init__(self) -> None:
        """Refuses agents that act in turns."""
        if isinstance(self.environment, JaxTurnEnvironment):
            raise SpecError(
                f"Agents of a team act together, and those of {type(self.environment).__name__} act in turns: they "
                "learn apart. Say who plays whom: --policies shared (or each), in Python agentkit.MultiAgentConfig."
            )

    @property
    def reset_pool(self) -> int | None:  # type: ignore[override]
        """Returns that of the environment."""
        return self.environment.reset_pool

    def observation_spec(self) -> dict[str, Any]:
        """Returns the specs of a team: of the agents, of who is active, and of the state where there is one."""
        agents = dict(sorted(self.environment.observation_spec().items()))
        spec = {"agents": agents, "active": specs.Array((len(agents),), bool, "active")}
        state = self.environment.state_spec()
        return spec if state is None else {**spec, "state": state}

    def action_spec(self) -> dict[AgentId, Nest]:
        """Returns the agents' specs by id."""
        return dict(sorted(self.environment.action_spec().items()))

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode of all agents."""
        state, timestep = self.environment.reset(key)
        return state, self._of_all(state, timestep)

    def step(self, state: Any, action: dict[AgentId, Nest], key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes the actions of all agents."""
        state, timestep = self.environment.step(state, action, key)
        return state, self._of_all(state, timestep)

    def render(self, state: Any) -> np.ndarray:
        """Returns an image of a state, as the environment of the agents draws it."""
        return self.environment.render(state)

    def _of_all(self, state: Any, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        ids = sorted(timestep.observation)
        reward, discount = (
            jnp.stack([field[agent_id] for agent_id in ids]) for field in (timestep.reward, timestep.discount)
        )
        active = (timestep.step_type != LAST) | (discount > 0)
        seen: dict[str, Any] = {"agents": dict(timestep.observation), "active": active}
        if self.environment.state_spec() is not None:
            seen["state"] = self.environment.global_state(state)
        return dm_env.TimeStep(timestep.step_type, jnp.sum(reward), jnp.max(discount), seen)
