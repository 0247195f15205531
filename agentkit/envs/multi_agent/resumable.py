"""Environments of several agents that stand in mid-episode again after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import nests
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.envs.resumable import compare, elsewhere, episode_seed, fingerprint, unstack, warn_of_length
from agentkit.errors import CheckpointError, ConfigError
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest


@final
class ResumableMultiAgentEnvironment(MultiAgentWrapper):
    """Makes an environment of several agents whose episodes can be repeated also one that can be saved.

    It does what `envs.resumable.ResumableEnvironment` does for one agent: episode k begins with ``reseed`` of a seed
    made of (`seed`, k), the actions of its steps are kept, and `restore` takes them again. An episode of `LONG_EPISODE`
    steps is warned of, as there.

    Args:
        environment: with ``reseed(seed)``.
        seed: seeds the sequence of episodes.

    Raises:
        ConfigError: the environment has no `reseed`.
    """

    resumable = True

    def __init__(self, environment: MultiAgentEnvironment, seed: int = 0):
        if not callable(getattr(environment, "reseed", None)):
            raise ConfigError(
                f"{type(environment).__name__} has no reseed(seed), so its episodes cannot be repeated. Give it "
                "one: the next reset() begins an episode that depends on that seed alone."
            )
        super().__init__(environment)
        self._specs = environment.agent_specs()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begins another sequence of episodes: the next reset is its episode 0."""
        self._seed, self._episode = int(seed), -1
        self._actions: list[dict[AgentId, Nest]] = []
        self._timesteps: dict[AgentId, dm_env.TimeStep] = {}

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts the next episode."""
        self._episode += 1
        return self._begin()

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        self._actions.append({agent_id: nests.copy_nest(action) for agent_id, action in actions.items()})
        warn_of_length(len(self._actions), "a limit of the environment's own, such as PettingZoo's max_cycles")
        self._timesteps = self._environment.step(actions)
        return self._timesteps

    def _begin(self) -> dict[AgentId, dm_env.TimeStep]:
        self._actions = []
        self._environment.reseed(episode_seed(self._seed, self._episode))
        self._timesteps = self._environment.reset()
        return self._timesteps

    def save(self) -> dict[str, Any]:
        """Returns the episode's number, and the actions of each agent with the numbers of the steps they were for."""
        actions = {}
        for agent_id in self._specs:
            own = {number: each[agent_id] for number, each in enumerate(self._actions) if agent_id in each}
            leaves = zip(*(tree.flatten(action) for action in own.values()), strict=True)
            actions[agent_id] = {
                "steps": np.array(list(own), np.int64),
                "leaves": {str(i): np.stack(leaf) for i, leaf in enumerate(leaves)},
            }
        return {
            "seed": self._seed,
            "episode": self._episode,
            "num_steps": len(self._actions),
            "actions": actions,
            "last": {agent_id: fingerprint(timestep) for agent_id, timestep in self._timesteps.items()},
        }

    def restore(self, state: dict[str, Any]) -> dict[AgentId, dm_env.TimeStep]:
        """Stands where `save` stood: begins the episode again and replays its actions.

        Returns:
            The newest time steps; none before the first reset.

        Raises:
            CheckpointError: the state does not fit, or the replayed episode ends up elsewhere.
        """
        try:
            self.reseed(state["seed"])
            self._episode = int(state["episode"])
            steps: list[dict[AgentId, Nest]] = [{} for _ in range(int(state["num_steps"]))]
            for agent_id, saved in state["actions"].items():
                numbers = saved["steps"].tolist()
                own = unstack(saved["leaves"], self._specs[agent_id].actions, len(numbers))
                for number, action in zip(numbers, own, strict=True):
                    steps[number][agent_id] = action
            last = state["last"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"Expected the state of an environment of {', '.join(self._specs)}, found something else: {error!r}. "
                "Build the environment as when it was saved."
            ) from error
        if self._episode < 0:
            return {}
        self._begin()
        for number, actions in enumerate(steps):
            acting = {agent_id for agent_id, timestep in self._timesteps.items() if not timestep.last()}
            if acting != actions.keys():
                raise elsewhere(f"at step {number} of {len(steps)} other agents are to act: {sorted(acting)}")
            self.step(actions)
        if last.keys() != self._timesteps.keys():
            raise elsewhere(f"expected time steps of {sorted(last)}, found those of {sorted(self._timesteps)}")
        for agent_id, timestep in self._timesteps.items():
            compare(last[agent_id], fingerprint(timestep))
        return self._timesteps

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs of the environment inside."""
        return self._specs
