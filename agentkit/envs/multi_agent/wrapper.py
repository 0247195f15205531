"""The base of wrappers around environments of several agents."""

from __future__ import annotations

from collections.abc import Mapping

import dm_env

from agentkit.core import MultiAgentEnvironment
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest
from agentkit.wrappers.base import Around


class MultiAgentWrapper(Around, MultiAgentEnvironment):
    """Passes everything on to the environment inside; subclasses change single methods.

    Args:
        environment: of several agents.
    """

    def __init__(self, environment: MultiAgentEnvironment):
        self._environment = environment

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs by agent id."""
        specs: Mapping[AgentId, EnvironmentSpec] = self._environment.agent_specs()
        return specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        timesteps: dict[AgentId, dm_env.TimeStep] = self._environment.reset()
        return timesteps

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        timesteps: dict[AgentId, dm_env.TimeStep] = self._environment.step(actions)
        return timesteps

    def state_spec(self) -> Nest | None:
        """Returns the spec of the environment's state."""
        return self._environment.state_spec()

    def state(self) -> Nest:
        """Returns the environment's state."""
        return self._environment.state()

    def close(self) -> None:
        """Closes the environment inside."""
        self._environment.close()
