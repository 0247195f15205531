"""Shows each step of several agents to a camera: for films, and for a window."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import numpy as np

from agentkit.core import MultiAgentEnvironment
from agentkit.envs.given import name_of
from agentkit.envs.rendering import prepare_pygame
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest

Camera = Callable[[Callable[[], np.ndarray]], None]
"""Called after each step and reset with a function that draws, ``() -> uint8 [H, W, 3]``."""


def filmed_agents(config: MultiAgentConfig, camera: Camera, size: int | None = None) -> MultiAgentConfig:
    """Returns the experiment with an environment that shows every step to a camera.

    Args:
        config: whose environment is to be seen.
        camera: takes the images that it wants.
        size: is not used: none of these environments can be asked for a height.
    """
    del size
    name = name_of(config.environment)
    if str(config.environment).startswith("pettingzoo:"):
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
class FilmedAgents(MultiAgentEnvironment):
    """Shows each step to a camera, which takes the images that it wants.

    Args:
        environment: of several agents, with ``render() -> uint8 [H, W, 3]``.
        camera: see `Camera`.
    """

    def __init__(self, environment: MultiAgentEnvironment, camera: Camera):
        self._environment: Any = environment
        self._camera = camera

    def __getattr__(self, name: str) -> Any:
        # Private names stay private; this also ends the recursion before __init__ has run.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)

    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs by agent id."""
        specs: Mapping[AgentId, EnvironmentSpec] = self._environment.agent_specs()
        return specs

    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode."""
        return self._shown(self._environment.reset())

    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""
        return self._shown(self._environment.step(actions))

    def _shown(self, timesteps: dict[AgentId, dm_env.TimeStep]) -> dict[AgentId, dm_env.TimeStep]:
        self._camera(self._environment.render)
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
