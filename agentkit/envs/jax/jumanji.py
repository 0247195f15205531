"""Jumanji's environments of one agent (Bonnet et al. 2024, 2306.09884). The one file that imports jumanji."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.foreign import Settings, as_given, keywords_of
from agentkit.envs.jax.pooled import with_reset_pool
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import SpecError, missing_extra
from agentkit.types import Array, Nest

try:
    import jumanji
    from jumanji.specs import jumanji_specs_to_dm_env_specs
except ImportError as error:
    raise missing_extra("jumanji", "jumanji") from error


def make(name: str, seed: int = 0, reset_pool: int | None = None, **settings: Any) -> dm_env.Environment:
    """Makes one of jumanji's environments, behind dm_env's interface.

    Args:
        name: as jumanji has it, such as ``Snake-v1``.
        seed: of the episodes.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its class, such as ``time_limit=100``.

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
        SpecError: it has several agents.
    """
    environment = Jumanji(name, Settings(settings))
    environment.check()
    return DmEnvironment(with_reset_pool(environment, reset_pool), seed)


@final
@dataclasses.dataclass(frozen=True)
class Jumanji(JaxEnvironment):
    """Steps one of jumanji's environments, whose observations become dicts; `action_mask` rules choices out.

    Attributes:
        name: see `make`.
        settings: likewise.
    """

    name: str
    settings: Settings = dataclasses.field(default_factory=Settings)

    @functools.cached_property
    def _made(self) -> Any:
        return jumanji.make(self.name, **self.settings.values)

    def check(self) -> None:
        """Refuses an unknown name or setting, and an environment of several agents.

        Raises:
            UnknownNameError: proposes the nearest one.
            SpecError: rewards are an array.
        """
        check_known("jumanji", self.name, jumanji.registered_environments())
        check_settings(
            f"jumanji:{self.name}",
            self.settings.values,
            ["reset_pool", *keywords_of(type(jumanji.make(self.name).unwrapped))],
        )
        shape = tuple(self._made.reward_spec.shape)
        if shape:
            raise SpecError(f"jumanji:{self.name}: expected one reward a step, found rewards of shape {list(shape)}.")

    @functools.cached_property
    def _observation(self) -> Nest:
        _, timestep = jax.eval_shape(self._made.reset, jax.random.PRNGKey(0))
        spec = jumanji_specs_to_dm_env_specs(self._made.observation_spec)
        return _to_dicts(spec, timestep.observation, f"jumanji:{self.name}")

    def observation_spec(self) -> Nest:
        """Returns the specs of its observations, by name where there are several."""
        return self._observation

    @functools.cached_property
    def _action(self) -> specs.Array:
        return jumanji_specs_to_dm_env_specs(self._made.action_spec)

    def action_spec(self) -> specs.Array:
        """Returns the spec of its actions."""
        return self._action

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        return self._moved(*self._made.reset(key))

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes an action; its randomness comes from its own state."""
        return self._moved(*self._made.step(state, action))

    def _moved(self, state: Any, timestep: Any) -> tuple[Any, dm_env.TimeStep]:
        observation = _values(self._observation, timestep.observation)
        reward, discount = (jnp.asarray(x, jnp.float32) for x in (timestep.reward, timestep.discount))
        step_type = jnp.asarray(timestep.step_type, jnp.int32)  # Counted as dm_env's are.
        discount = jnp.where(step_type == 0, 1.0, discount)
        return state, dm_env.TimeStep(step_type, reward, discount, observation)


def _to_dicts(spec: Any, seen: Any, environment: str) -> Nest:
    """Returns specs as dicts, see `as_given`; what is seen is in named tuples or data classes."""
    if isinstance(spec, Mapping):
        return {name: _to_dicts(each, getattr(seen, name), environment) for name, each in spec.items()}
    return as_given(spec, seen, environment)


def _values(spec: Nest, value: Any) -> Nest:
    """Returns a named tuple's or data class's values as the dicts of its spec, in its dtypes."""
    if isinstance(spec, Mapping):
        return {name: _values(each, getattr(value, name)) for name, each in spec.items()}
    return jnp.asarray(value, spec.dtype)
