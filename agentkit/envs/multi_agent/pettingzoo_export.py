"""Gives environments of several agents back to PettingZoo, for its tools and for other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.gymnasium_loading import spaces
from agentkit.envs.multi_agent.pettingzoo_loading import pettingzoo
from agentkit.errors import ConfigError
from agentkit.types import AgentId, Nest


@final
class PettingZooExport(pettingzoo.AECEnv):  # type: ignore[misc]  # PettingZoo is not typed for mypy here.
    """Gives an environment of several agents PettingZoo's AEC interface.

    Agents that act together are selected one after the other, and the step is taken when the last of them has acted.
    An agent is among the ``agents`` from its first time step until it has heard of its end.

    Args:
        environment: whose agents do not come back within an episode, which PettingZoo does not know.
        name: for PettingZoo's metadata.
    """

    def __init__(self, environment: MultiAgentEnvironment, name: str = "agentkit"):
        super().__init__()
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self._environment: Any = environment
        self._specs = environment.agent_specs()
        self.possible_agents = list(self._specs)
        self.observation_spaces = {i: to_space(spec.observations) for i, spec in self._specs.items()}
        self.action_spaces = {i: to_space(spec.actions) for i, spec in self._specs.items()}

    def observation_space(self, agent: AgentId) -> spaces.Space:
        """Returns an agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: AgentId) -> spaces.Space:
        """Returns an agent's action space."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts an episode, that of a seed where there is one and the environment has `reseed`."""
        del options
        if seed is not None and hasattr(self._environment, "reseed"):
            self._environment.reseed(seed)
        self.agents: list[AgentId] = []
        self.rewards: dict[AgentId, float] = {}
        self._cumulative_rewards: dict[AgentId, float] = {}
        self.terminations: dict[AgentId, bool] = {}
        self.truncations: dict[AgentId, bool] = {}
        self.infos: dict[AgentId, dict[str, Any]] = {}
        self._gone: set[AgentId] = set()
        self._seen: dict[AgentId, Nest] = {}
        self._actions: dict[AgentId, Nest] = {}
        self._take(self._environment.reset())

    def step(self, action: Any) -> None:
        """Takes the action of the agent that is selected; None of one that has ended."""
        agent_id = self.agent_selection
        if self.terminations[agent_id] or self.truncations[agent_id]:
            self._was_dead_step(action)
            self._gone.add(agent_id)
            self._queue.remove(agent_id)
            self._select()
            return
        self._cumulative_rewards[agent_id] = 0.0
        self._clear_rewards()
        spec = self._specs[agent_id].actions
        self._actions[agent_id] = tree.map_structure(lambda leaf, value: np.asarray(value, leaf.dtype), spec, action)
        self._queue.remove(agent_id)
        if self._queue:
            self._select()
            return
        actions, self._actions = self._actions, {}
        self._take(self._environment.step(actions))

    def _take(self, timesteps: Mapping[AgentId, dm_env.TimeStep]) -> None:
        for agent_id, timestep in timesteps.items():
            if agent_id in self._gone:
                raise ConfigError(f"{agent_id!r} came back in the same episode, which PettingZoo does not know.")
            if agent_id not in self.agents:
                self.agents.append(agent_id)
                self._cumulative_rewards[agent_id], self.infos[agent_id] = 0.0, {}
            ended = timestep.last()
            self.rewards[agent_id] = float(timestep.reward or 0.0)
            self.terminations[agent_id] = bool(ended and not timestep.discount)
            self.truncations[agent_id] = bool(ended and timestep.discount)
            if timestep.observation is not None:
                self._seen[agent_id] = timestep.observation
            self._seen.setdefault(agent_id, specs.zeros(self._specs[agent_id].observations))
        self._accumulate_rewards()
        self._queue = sorted(timesteps, key=lambda agent_id: not timesteps[agent_id].last())  # First who has ended.
        self._select()

    def _select(self) -> None:
        if self._queue:
            self.agent_selection = self._queue[0]

    def observe(self, agent: AgentId) -> Nest:
        """Returns what an agent saw at its newest time step."""
        return self._seen[agent]

    def state(self) -> np.ndarray:
        """Returns the environment's state."""
        found: np.ndarray = self._environment.state()
        return found

    def render(self) -> None:
        """Draws nothing."""

    def close(self) -> None:
        """Closes the environment inside."""
        self._environment.close()


def to_space(spec: Nest) -> spaces.Space:
    """Returns the gymnasium space of a nest of specs; choices count from 0."""
    if isinstance(spec, dict):
        return spaces.Dict({key: to_space(child) for key, child in spec.items()})
    if isinstance(spec, tuple):
        return spaces.Tuple([to_space(child) for child in spec])
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values))
    if isinstance(spec, specs.BoundedArray):
        low, high = (np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (spec.minimum, spec.maximum))
        return spaces.Box(low, high, spec.shape, spec.dtype.type)
    low, high = _ends(spec.dtype)
    return spaces.Box(low, high, spec.shape, dtype=spec.dtype.type)


def _ends(dtype: np.dtype) -> tuple[Any, Any]:
    """Returns the least and the greatest value of a type."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
