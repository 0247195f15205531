"""Navix's grid worlds, MiniGrid's in JAX (Pignatelli et al. 2024, 2407.19396). The one file that imports navix."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.foreign import Settings, cast, dtypes_after_a_step, unbounded
from agentkit.envs.jax.pooled import with_reset_pool
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import missing_extra
from agentkit.types import Array

try:
    import navix
    from navix.environments import Environment
except ImportError as error:
    raise missing_extra("navix", "navix") from error


def make(name: str, seed: int = 0, reset_pool: int | None = None, **settings: Any) -> dm_env.Environment:
    """Makes one of navix's environments, behind dm_env's interface.

    Args:
        name: as navix has it, such as ``Navix-DoorKey-5x5-v0``.
        seed: of the episodes.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its class, such as ``max_steps=100`` or ``observation_fn=navix.observations.rgb``.

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
    """
    check_known("navix", name, navix.registry())
    check_settings(f"navix:{name}", settings, ["reset_pool", *inspect.signature(Environment).parameters])
    environment = Navix(name, Settings(settings))
    environment.observation_spec()
    return DmEnvironment(with_reset_pool(environment, reset_pool), seed)


@final
@dataclasses.dataclass(frozen=True)
class Navix(JaxEnvironment):
    """Steps one of navix's environments, without the reset that its ``step`` has inside.

    Attributes:
        name: see `make`.
        settings: likewise.
    """

    name: str
    settings: Settings = dataclasses.field(default_factory=Settings)

    @functools.cached_property
    def _made(self) -> Any:
        return navix.make(self.name, **self.settings.values)

    @functools.cached_property
    def _dtypes(self) -> Any:
        return dtypes_after_a_step(self._made.reset, self._made._step, self.action_spec())

    @functools.cached_property
    def _observation(self) -> specs.Array:
        return unbounded(self._made.observation_space)  # It says 8 at most of grids that hold a 10.

    def observation_spec(self) -> specs.Array:
        """Returns the spec of what its ``observation_fn`` gives."""
        return self._observation

    def action_spec(self) -> specs.DiscreteArray:
        """Returns the spec of its actions."""
        return specs.DiscreteArray(len(self._made.action_set), np.int32, "action")

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        state = cast(self._made.reset(key), self._dtypes)
        return state, first_step(self._seen(state))

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes an action; its randomness comes from its own state."""
        # `step` is this and a reset, which would be computed at each step of many environments.
        state = cast(self._made._step(state, action), self._dtypes)
        return state, next_step(self._seen(state), state.reward, state.is_termination(), state.is_truncation())

    def _seen(self, state: Any) -> jax.Array:
        return jnp.asarray(state.observation, self._observation.dtype)
