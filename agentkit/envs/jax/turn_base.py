"""The interface of games in JAX whose players act in turns; this file loads no JAX."""

from __future__ import annotations

import abc

import dm_env

from agentkit.envs.jax.base import State
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.types import AgentId, Array, Nest


class JaxTurnEnvironment(JaxMultiAgentEnvironment):
    """Describes an environment whose agents act one at a time, by pure functions.

    `turn` says who acts, in any order; all agents are in the game from an episode's first step to its last. A time step
    is one of all, as of `JaxMultiAgentEnvironment`: it has the rewards and discounts of this very step, and what each
    agent sees now. Whoever steps it adds up what an agent is given between two of its turns, as
    `core.MultiAgentEnvironment` has it.

    Nothing is learned from the observation of an agent whose turn it is not, but at the episode's end, where all have a
    final one.
    """

    @abc.abstractmethod
    def turn(self, state: State) -> Array:
        """Returns who acts, as its number among `observation_spec`'s agents, int32 ``[]``; at the end anybody."""

    @abc.abstractmethod
    def step(self, state: State, action: dict[AgentId, Nest], key: Array) -> tuple[State, dm_env.TimeStep]:
        """Takes the action of the agent whose turn it is; there are some of all agents, and the others count nothing.

        See `JaxEnvironment.step`.
        """
