"""The interface of environments of several agents in JAX; this file loads no JAX."""

from __future__ import annotations

import abc
from typing import Any

import dm_env
import numpy as np

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment, State
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Array, Nest


class JaxMultiAgentEnvironment(JaxEnvironment):
    """Describes an environment of several agents by pure functions, to be compiled and mapped over many.

    All agents act at each step, from an episode's first one to its last. So a time step is one of all: its step type
    is a number, and its reward, discount and observation are dictionaries by agent id. Each agent has its own discount
    where the episode ends: 0 if it terminates, 1 if it is cut off. `agentkit.envs.jax.time_steps` makes them.

    All else is as in `JaxEnvironment`: specs are by agent id, too.
    """

    @abc.abstractmethod
    def observation_spec(self) -> dict[AgentId, Nest]:
        """Returns the specs of the observations by agent id; its order is that of the agents."""

    @abc.abstractmethod
    def action_spec(self) -> dict[AgentId, Nest]:
        """Returns the specs of the actions by agent id; continuous ones are in [-1, 1]."""

    def reward_spec(self) -> dict[AgentId, specs.Array]:
        """Returns the specs of the rewards by agent id: float32 ``[]``."""
        return dict.fromkeys(self.observation_spec(), specs.Array((), np.float32, "reward"))

    def discount_spec(self) -> dict[AgentId, specs.BoundedArray]:
        """Returns the specs of the discounts by agent id: float32 ``[]`` in [0, 1]."""
        return dict.fromkeys(self.observation_spec(), specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"))

    @abc.abstractmethod
    def reset(self, key: Array) -> tuple[State, dm_env.TimeStep]:
        """Begins an episode of all agents; see `JaxEnvironment.reset`."""

    @abc.abstractmethod
    def step(self, state: State, action: dict[AgentId, Nest], key: Array) -> tuple[State, dm_env.TimeStep]:
        """Takes the actions of all agents, by id; see `JaxEnvironment.step`."""

    def state_spec(self) -> Nest | None:
        """Returns the spec of what a centralised critic may see; None where there is no such state."""
        return None

    def global_state(self, state: State) -> Nest:
        """Returns what `state_spec` describes, of a state of the environment."""
        raise NotImplementedError(f"{type(self).__name__} has no state_spec.")

    def agent_specs(self) -> dict[AgentId, EnvironmentSpec]:
        """Returns the specs of each agent, by id."""
        of_all: tuple[dict[AgentId, Any], ...] = (
            self.observation_spec(),
            self.action_spec(),
            self.reward_spec(),
            self.discount_spec(),
        )
        return {agent_id: EnvironmentSpec(*(each[agent_id] for each in of_all)) for agent_id in of_all[0]}
