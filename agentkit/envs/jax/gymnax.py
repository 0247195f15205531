"""Gymnax's environments, unwrapped (Lange 2022, github.com/RobertTLange/gymnax). The one file that imports gymnax."""

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
from agentkit.envs.jax.foreign import Settings, as_given, cast, dtypes_after_a_step, spec_of_space, to_bounds
from agentkit.envs.jax.pooled import with_reset_pool
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import ConfigError, missing_extra
from agentkit.types import Array, Nest
from agentkit.wrappers.base import check_count

try:
    import gymnax
except ImportError as error:
    raise missing_extra("gymnax", "gymnax") from error


def make(name: str, seed: int = 0, reset_pool: int | None = None, **settings: Any) -> dm_env.Environment:
    """Makes one of gymnax's environments, behind dm_env's interface.

    Args:
        name: as gymnax has it, such as ``CartPole-v1`` or ``Breakout-MinAtar``.
        seed: of the episodes.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its class (``use_minimal_action_set=False``) or of its parameters (``max_steps_in_episode=200``).

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
        ConfigError: gymnax is older than 1.0, or `max_steps_in_episode` is no whole number of at least 1.
        SpecError: its observations or actions are none that agents take.
    """
    environment = Gymnax(name, Settings(settings))
    environment.observation_spec(), environment.action_spec()
    return DmEnvironment(with_reset_pool(environment, reset_pool), seed)


@final
@dataclasses.dataclass(frozen=True)
class Gymnax(JaxEnvironment):
    """Steps one of gymnax's environments by its own functions, without the reset that its ``step`` has inside.

    The end by its time limit is a truncation, all others are terminations. Continuous actions are scaled from [-1, 1].

    Attributes:
        name: see `make`.
        settings: likewise.
    """

    name: str
    settings: Settings = dataclasses.field(default_factory=Settings)

    @functools.cached_property
    def _made(self) -> tuple[Any, Any]:
        """Returns gymnax's environment and its parameters."""
        check_known("gymnax", self.name, gymnax.registered_envs)
        environment, params = gymnax.make(self.name)
        if not hasattr(environment, "is_truncated"):
            raise ConfigError(
                "Expected gymnax 1.0 or newer, found one that does not tell an episode that is cut off from one that "
                "has ended. Install it with: pip install 'gymnax>=1.0'"
            )
        own = inspect.signature(type(environment)).parameters
        fields = [field.name for field in dataclasses.fields(params)]
        check_settings(f"gymnax:{self.name}", self.settings.values, ["reset_pool", *own, *fields])
        given = self.settings.values
        if "max_steps_in_episode" in given:  # Of 0 steps or fewer, each episode would end at its first.
            check_count("max_steps_in_episode", given["max_steps_in_episode"])
        environment, params = gymnax.make(self.name, **{key: x for key, x in given.items() if key in own})
        return environment, params.replace(**{key: x for key, x in given.items() if key not in own})

    @functools.cached_property
    def _dtypes(self) -> Nest:
        environment, params = self._made
        return dtypes_after_a_step(
            lambda key: environment.reset_env(key, params)[1],
            lambda state, action: environment.step_env(
                jax.random.PRNGKey(0), state, to_bounds(action, self._spaces[1]), params
            )[1],
            self.action_spec(),
        )

    @functools.cached_property
    def _spaces(self) -> tuple[specs.Array, specs.Array]:
        """Returns the specs of observations and of gymnax's own actions."""
        environment, params = self._made
        with jax.ensure_compile_time_eval():  # Where a step is compiled, the bounds are numbers all the same.
            spaces = environment.observation_space(params), environment.action_space(params)
            names, of = ("observation", "action"), f"gymnax:{self.name}"
            observation, action = (spec_of_space(space, name, of) for space, name in zip(spaces, names, strict=True))
        seen, _ = jax.eval_shape(lambda key: environment.reset_env(key, params), jax.random.PRNGKey(0))
        return as_given(observation, seen, of), action

    def observation_spec(self) -> specs.Array:
        """Returns the spec of its observation space."""
        return self._spaces[0]

    def action_spec(self) -> specs.Array:
        """Returns the spec of its actions: choices, or float32 in [-1, 1]."""
        own = self._spaces[1]
        if isinstance(own, specs.DiscreteArray):
            return own
        return specs.BoundedArray(own.shape, np.float32, -1.0, 1.0, "action")

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        environment, params = self._made
        observation, state = environment.reset_env(key, params)
        return cast(state, self._dtypes), first_step(self._observed(observation))

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes an action."""
        environment, params = self._made
        action = to_bounds(action, self._spaces[1])
        observation, state, reward, terminated, _ = environment.step_env(key, state, action, params)
        truncated = environment.is_truncated(state, params)
        reward = jnp.reshape(reward, ())
        return cast(state, self._dtypes), next_step(self._observed(observation), reward, terminated, truncated)

    def _observed(self, observation: Array) -> Array:
        spec = self.observation_spec()
        return jnp.reshape(jnp.asarray(observation, spec.dtype), spec.shape)
