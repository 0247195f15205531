"""Who an agent is, as a part of what it sees: so that agents may share a policy and yet act differently."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.base import State
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.errors import SpecError
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Array, Nest

AGENT_ID = "agent_id"
"""The key in an observation of who sees it."""


def make(name: str, seed: int = 0, **settings: Any) -> MultiAgentEnvironment:
    """Makes an environment of several agents by name, such as ``pettingzoo:mpe/simple_spread_v3``, with agent ids.

    One in JAX stays one, which the training on the device takes.

    Args:
        name: as `envs.make_multi_agent` takes it.
        seed: seeds everything.
        **settings: go to the environment.
    """
    made: MultiAgentEnvironment = make_multi_agent(name, seed, raw=True, **settings)
    in_jax = getattr(made, "jax_environment", None)
    if in_jax is None:
        return AgentIds(made)
    from agentkit.envs.jax.multi_agent_host import on_host  # Loads JAX.

    return on_host(in_jax_with_agent_ids(in_jax), seed)


@final
class AgentIds(MultiAgentWrapper):
    """Shows each agent who it is: 1 at its own number among N, float32 ``[N]``, is a part of what it sees.

    A policy that agents share does the same wherever it sees the same; with this it need not (Gupta, Egorov and
    Kochenderfer 2017). Numbers are in the order of `agent_specs`. An observation that is a dictionary has
    ``"agent_id"`` beside its other parts; any other becomes ``{"observation": ..., "agent_id": ...}``.

    Args:
        environment: of several agents.

    Raises:
        SpecError: an observation has an ``"agent_id"`` already; or it is no environment of several agents.
    """

    def __init__(self, environment: MultiAgentEnvironment):
        if not isinstance(environment, MultiAgentEnvironment):
            raise SpecError(
                f"Agent ids need an environment of several agents, found {type(environment).__name__}. "
                "agentkit.envs.make_multi_agent makes them, of PettingZoo's too; one in JAX goes into "
                "envs.multi_agent.agent_ids.in_jax_with_agent_ids."
            )
        super().__init__(environment)
        inside: Mapping[AgentId, EnvironmentSpec] = environment.agent_specs()
        seen = _with_id_specs({agent_id: spec.observations for agent_id, spec in inside.items()})
        self._specs = {each: spec._replace(observations=seen[each]) for each, spec in inside.items()}
        self._ids = _one_hot(inside)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return functools.partial(self._restore, found) if name == "restore" else found  # Of those that can be saved.

    def _restore(
        self, restore: Callable[[Any], dict[AgentId, dm_env.TimeStep]], state: Any
    ) -> dict[AgentId, dm_env.TimeStep]:
        return self._show(restore(state))

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs by agent id."""
        return self._specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        return self._show(self._environment.reset())

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        return self._show(self._environment.step(actions))

    def _show(self, timesteps: Mapping[AgentId, dm_env.TimeStep]) -> dict[AgentId, dm_env.TimeStep]:
        shown = dict(timesteps)
        for agent_id, timestep in timesteps.items():
            if timestep.observation is not None and agent_id in self._ids:  # The loop refuses an id that is unknown.
                seen = _with_id(timestep.observation, self._ids[agent_id])
                shown[agent_id] = timestep._replace(observation=seen)
        return shown


def in_jax_with_agent_ids(environment: JaxMultiAgentEnvironment) -> JaxMultiAgentEnvironment:
    """Returns an environment in JAX, of agents that act together or in turns, as `AgentIds` shows it."""
    in_turns = isinstance(environment, JaxTurnEnvironment)
    return _JaxTurnAgentIds(environment) if in_turns else _JaxAgentIds(environment)


@dataclasses.dataclass(frozen=True)
class _JaxAgentIds(JaxMultiAgentEnvironment):
    environment: Any

    @property
    def reset_pool(self) -> int | None:  # type: ignore[override]
        return self.environment.reset_pool

    def observation_spec(self) -> dict[AgentId, Nest]:
        return _with_id_specs(self.environment.observation_spec())

    def action_spec(self) -> dict[AgentId, Nest]:
        return self.environment.action_spec()

    def reward_spec(self) -> dict[AgentId, specs.Array]:
        return self.environment.reward_spec()

    def discount_spec(self) -> dict[AgentId, specs.BoundedArray]:
        return self.environment.discount_spec()

    def reset(self, key: Array) -> tuple[State, dm_env.TimeStep]:
        state, timestep = self.environment.reset(key)
        return state, self._show(timestep)

    def step(self, state: State, action: dict[AgentId, Nest], key: Array) -> tuple[State, dm_env.TimeStep]:
        state, timestep = self.environment.step(state, action, key)
        return state, self._show(timestep)

    def state_spec(self) -> Nest | None:
        return self.environment.state_spec()

    def global_state(self, state: State) -> Nest:
        return self.environment.global_state(state)

    def render(self, state: State) -> np.ndarray:
        return self.environment.render(state)

    def _show(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        ids = _one_hot(self.environment.observation_spec())
        seen = {agent_id: _with_id(timestep.observation[agent_id], ids[agent_id]) for agent_id in ids}
        return timestep._replace(observation=seen)


@final
@dataclasses.dataclass(frozen=True)
class _JaxTurnAgentIds(_JaxAgentIds, JaxTurnEnvironment):
    def turn(self, state: State) -> Array:
        return self.environment.turn(state)


def _one_hot(agent_ids: Mapping[AgentId, Any]) -> dict[AgentId, np.ndarray]:
    return dict(zip(agent_ids, np.eye(len(agent_ids), dtype=np.float32), strict=True))


def _with_id(observation: Nest, one_hot: Nest) -> dict[str, Nest]:
    parts = observation if isinstance(observation, Mapping) else {"observation": observation}
    return {**parts, AGENT_ID: one_hot}


def _with_id_specs(observations: Mapping[AgentId, Nest]) -> dict[AgentId, Nest]:
    for agent_id, spec in observations.items():
        if isinstance(spec, Mapping) and AGENT_ID in spec:
            raise SpecError(
                f"agent_ids: what {agent_id!r} sees has an {AGENT_ID!r} already, of {spec[AGENT_ID]}. Leave agent_ids: "
                "out, or call that part otherwise."
            )
    shape = (len(observations),)
    one_hot = specs.BoundedArray(shape, np.float32, 0.0, 1.0, AGENT_ID)
    return {agent_id: _with_id(spec, one_hot) for agent_id, spec in observations.items()}
