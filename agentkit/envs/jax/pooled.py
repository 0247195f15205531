"""An environment in JAX whose resets the training on the device draws from a pool."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import dm_env
import numpy as np

from agentkit.envs.jax.base import JaxEnvironment
from agentkit.errors import ConfigError
from agentkit.types import Array, Nest


@final
@dataclasses.dataclass(frozen=True)
class Pooled(JaxEnvironment):
    """Is another environment, with a `reset_pool`.

    Attributes:
        environment: the other one.
        reset_pool: see `JaxEnvironment`.
    """

    environment: JaxEnvironment
    reset_pool: int | None = None

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""
        return self.environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns the spec of the actions."""
        return self.environment.action_spec()

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards."""
        return self.environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts."""
        return self.environment.discount_spec()

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        return self.environment.reset(key)

    def step(self, state: Any, action: Nest, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes an action."""
        return self.environment.step(state, action, key)

    def render(self, state: Any) -> np.ndarray:
        """Returns an image of a state."""
        return self.environment.render(state)


def with_reset_pool(environment: JaxEnvironment, size: Any) -> JaxEnvironment:
    """Returns the environment with a pool of resets; itself where there is to be none; see `checked_size`."""
    return environment if checked_size(size) is None else Pooled(environment, size)


def checked_size(size: Any) -> int | None:
    """Returns the size of a pool of resets.

    Raises:
        ConfigError: it is no number of resets.
    """
    if size is not None and (type(size) is not int or size < 1):
        raise ConfigError(f"reset_pool: expected a whole number of at least 1, or None, found {size!r}.")
    return size
