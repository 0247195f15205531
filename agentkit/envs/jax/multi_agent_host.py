"""Any environment of several agents in JAX as an ordinary one: numpy arrays by agent id, one step a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import numpy as np
import tree

from agentkit.child import check_not_forked
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.dm_environment import CompiledSteps, cast_action, kind_of_step, on_cpu, to_numpy
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.jax.turn_host import HostTurnEnvironment
from agentkit.envs.multi_agent.base import check_who_acts
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest


def on_host(environment: JaxMultiAgentEnvironment, seed: int = 0) -> MultiAgentEnvironment:
    """Returns an environment of several agents in JAX as an ordinary one, whose agents act together or in turns.

    Args:
        environment: in JAX.
        seed: of the episodes.
    """
    if isinstance(environment, JaxTurnEnvironment):
        return HostTurnEnvironment(environment, seed)
    return HostMultiAgentEnvironment(environment, seed)


@final
class HostMultiAgentEnvironment(MultiAgentEnvironment):
    """Steps an environment of agents that act together in JAX from Python: for every mode on the host, and evaluations.

    It runs on the CPU, where a step at a time is quickest.

    Attributes:
        jax_environment: the environment inside.
    """

    def __init__(self, environment: JaxMultiAgentEnvironment, seed: int = 0):
        """Compiles nothing before the first reset; equal environments are compiled once."""
        check_not_forked()
        self.jax_environment = environment
        self._compiled = CompiledSteps(environment)
        self._specs = environment.agent_specs()
        self._state: Any = None
        self._is_over = True
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._key = on_cpu(jax.random.PRNGKey(seed))  # Where the key is, all else is computed.

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs of each agent, by id."""
        return self._specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        self._key, self._state, timestep = self._compiled.reset(self._key)
        self._is_over = False
        observations = to_numpy(timestep.observation)
        return {each: dm_env.TimeStep(dm_env.StepType.FIRST, None, None, observations[each]) for each in self._specs}

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of all agents."""
        check_who_acts(actions, () if self._is_over else self._specs)
        own = {each: spec.actions for each, spec in self._specs.items()}
        cast = tree.map_structure(cast_action, own, {each: actions[each] for each in own})
        self._key, self._state, timestep = self._compiled.step(self._key, self._state, cast)
        step_type, *of_all = to_numpy(timestep)
        kind = kind_of_step(step_type, self.jax_environment)
        self._is_over = kind == dm_env.StepType.LAST
        return {each: dm_env.TimeStep(kind, *(field[each] for field in of_all)) for each in self._specs}

    def state_spec(self) -> Nest | None:
        """Returns the spec of what a centralised critic may see; None where there is no such state."""
        return self.jax_environment.state_spec()

    def state(self) -> Nest:
        """Returns the state as it is now."""
        return to_numpy(self.jax_environment.global_state(self._state))

    def render(self) -> np.ndarray:
        """Returns an image of where it stands, as `JaxEnvironment.render` draws it."""
        return self.jax_environment.render(self._state)
