"""Makes environments of several agents ready for agents, by the wrappers that make those of one agent ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import dm_env

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.envs.wrapping import prepare
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import AgentId, Nest


class _Port(dm_env.Environment):
    """Stands for the environment of one agent, inside of wrappers that keep nothing from step to step.

    What comes in goes through by `reset`, which gives the `incoming` time step; what goes out by `step`, which keeps
    the `outgoing` action.
    """

    def __init__(self, spec: EnvironmentSpec):
        self._spec = spec
        self.incoming = dm_env.restart(specs.zeros(spec.observations))
        self.outgoing: Nest = None

    def reset(self) -> dm_env.TimeStep:
        return self.incoming

    def step(self, action: Nest) -> dm_env.TimeStep:
        self.outgoing = action
        return self.incoming

    def observation_spec(self) -> Nest:
        return self._spec.observations

    def action_spec(self) -> Nest:
        return self._spec.actions

    def reward_spec(self) -> Nest:
        return self._spec.rewards

    def discount_spec(self) -> Nest:
        return self._spec.discounts


@final
class PreparedEnvironment(MultiAgentWrapper):
    """Gives each agent what agents expect: actions in [-1, 1] as a vector, and single precision.

    It is `envs.wrapping.prepare` of each agent.

    Args:
        environment: of several agents.
    """

    def __init__(self, environment: MultiAgentEnvironment):
        super().__init__(environment)
        self._ports = {agent_id: _Port(spec) for agent_id, spec in environment.agent_specs().items()}
        self._wrapped = {agent_id: prepare(port, concatenate=False) for agent_id, port in self._ports.items()}
        self._specs = {agent_id: make_environment_spec(wrapped) for agent_id, wrapped in self._wrapped.items()}

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs as agents see them."""
        return self._specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        return self._bring_in(self._environment.reset())

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        outgoing = {}
        for agent_id, action in actions.items():
            self._wrapped[agent_id].step(action)
            outgoing[agent_id] = self._ports[agent_id].outgoing
        return self._bring_in(self._environment.step(outgoing))

    def _bring_in(self, timesteps: Mapping[AgentId, dm_env.TimeStep]) -> dict[AgentId, dm_env.TimeStep]:
        found = {}
        for agent_id, timestep in timesteps.items():
            if agent_id not in self._ports:
                found[agent_id] = timestep  # The loop refuses it.
                continue
            port, has_none = self._ports[agent_id], timestep.observation is None
            if has_none:
                timestep = timestep._replace(observation=specs.zeros(port.observation_spec()))
            port.incoming = timestep
            timestep = self._wrapped[agent_id].reset()
            found[agent_id] = timestep._replace(observation=None) if has_none else timestep
        return found
