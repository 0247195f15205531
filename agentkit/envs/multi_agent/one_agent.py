"""An environment of one agent as one of several, of which there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env

from agentkit.core import MultiAgentEnvironment
from agentkit.envs.multi_agent.base import check_who_acts
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import AgentId, Nest

AGENT = "agent"


@final
class OneAgentEnvironment(MultiAgentEnvironment):
    """Gives a dm_env environment the interface of those of several agents; its one agent is called "agent".

    Args:
        environment: a dm_env environment, such as `envs.make` gives.
    """

    def __init__(self, environment: dm_env.Environment):
        self._environment: Any = environment
        self._to_act: tuple[AgentId, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the spec of the one agent."""
        return {AGENT: make_environment_spec(self._environment)}

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        self._to_act = (AGENT,)
        return {AGENT: self._environment.reset()}

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the agent's action."""
        check_who_acts(actions, self._to_act)
        timestep = self._environment.step(actions[AGENT])
        self._to_act = () if timestep.last() else (AGENT,)
        return {AGENT: timestep}

    def restore(self, state: dict[str, Any]) -> dict[AgentId, dm_env.TimeStep]:
        """Stands where the environment inside was saved."""
        timestep = self._environment.restore(state)
        self._to_act = () if timestep is None or timestep.last() else (AGENT,)
        return {} if timestep is None else {AGENT: timestep}

    def close(self) -> None:
        """Closes the environment inside."""
        self._environment.close()
