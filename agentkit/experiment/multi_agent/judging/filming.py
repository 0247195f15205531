"""Shows each step of several agents to a camera: for films, and for a window."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import dm_env

from agentkit.core import MultiAgentEnvironment
from agentkit.envs.given import name_of
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.envs.prefixes import is_of_pettingzoo
from agentkit.envs.rendering import prepare_pygame
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.types import AgentId, Nest
from agentkit.wrappers.film import Camera


def filmed_agents(config: MultiAgentConfig, camera: Camera) -> MultiAgentConfig:
    """Returns the experiment with an environment that shows every step to a camera.

    Args:
        config: whose environment is to be seen.
        camera: takes the images that it wants.
    """
    name = name_of(config.environment)
    if is_of_pettingzoo(str(config.environment)):
        prepare_pygame()
        drawing = {**config.environment_settings, "render_mode": "rgb_array"}
        config = dataclasses.replace(config, environment_settings=drawing)

    def make(seed: int) -> FilmedAgents:
        environment = config.make_environment(seed)
        if not callable(getattr(environment, "render", None)):
            environment.close()
            raise ConfigError(f"{name} has no render(), so there is nothing to see.")
        return FilmedAgents(environment, camera)

    return dataclasses.replace(config, environment=make, environment_settings={})


@final
class FilmedAgents(MultiAgentWrapper):
    """Shows each step to a camera, which takes the images that it wants.

    Args:
        environment: of several agents, with ``render() -> uint8 [H, W, 3]``.
        camera: see `Camera`.
    """

    def __init__(self, environment: MultiAgentEnvironment, camera: Camera):
        super().__init__(environment)
        self._camera = camera

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        return self._shown(super().reset())

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        return self._shown(super().step(actions))

    def _shown(self, timesteps: dict[AgentId, dm_env.TimeStep]) -> dict[AgentId, dm_env.TimeStep]:
        self._camera(self._environment.render)
        return timesteps
