"""JaxMARL's environments, unwrapped (Rutherford et al. 2024, 2311.10090). The one file that imports jaxmarl."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.foreign import Settings, as_given, cast, dtypes_after_a_step, spec_of_space, to_bounds
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.multi_agent_host import on_host
from agentkit.envs.jax.pooled import checked_size
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.prefixes import check_known
from agentkit.errors import ConfigError, SpecError, missing_extra, unknown_name
from agentkit.types import AgentId, Array, Nest

try:
    import jaxmarl
    from jaxmarl.environments import overcooked_layouts, overcooked_v2_layouts
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO
    from jaxmarl.registration import registered_envs
except ImportError as error:
    raise missing_extra("jaxmarl", "jaxmarl") from error

_LIMITS = {"max_steps": "step", "num_outer_steps": "outer_t"}
"""What an environment calls its limit of steps, or of the episodes in one (storm, coin_game), and its state the count.

Brax's in several parts (ant_4x2) say themselves when they were cut off, and Hanabi has no limit."""


def make(name: str, seed: int = 0, reset_pool: int | None = None, **settings: Any) -> MultiAgentEnvironment:
    """Makes one of JaxMARL's environments, as an ordinary one of several agents.

    Args:
        name: as JaxMARL has it, such as ``MPE_simple_spread_v3`` or ``overcooked``.
        seed: of the episodes.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its class (``max_steps=50``). A scenario of SMAX or a layout of Overcooked may be a name of
            JaxMARL's (``scenario="3m"``).

    Raises:
        UnknownNameError: there is no such environment, scenario or layout; proposes the nearest one.
        ConfigError: it does not take such a setting.
        SpecError: its observations or actions are none that agents take.
    """
    environment = JaxMarl(name, Settings(settings), checked_size(reset_pool))
    environment.check_observations()
    return on_host(environment, seed)


@final
@dataclasses.dataclass(frozen=True)
class JaxMarl(JaxMultiAgentEnvironment):
    """Steps one of JaxMARL's environments by its own functions, without the reset that its ``step`` has inside.

    An episode is over when it is for all: an agent that is out of the game before acts on, as in JaxMARL's own
    algorithms. The end at its limit of steps is a truncation, also where the game is decided at that very step; all
    others are terminations. Where it says which actions there are, observations become ``{"observation": ...,
    "action_mask": bool [A]}``. Continuous actions are scaled from [-1, 1].

    Attributes:
        name: see `make`.
        settings: likewise.
        reset_pool: likewise.
    """

    name: str
    settings: Settings = dataclasses.field(default_factory=Settings)
    reset_pool: int | None = None

    @functools.cached_property
    def _environment(self) -> Any:
        check_known("jaxmarl", self.name, registered_envs)
        settings = _looked_up(self.name, self.settings.values)
        try:
            made = jaxmarl.make(self.name, **settings)
            if getattr(made, "auto_reset", False):  # Brax's wrapper would put a reset's observation at the end.
                made = jaxmarl.make(self.name, **{**settings, "auto_reset": False})
        except (TypeError, AssertionError) as error:
            raise ConfigError(f"jaxmarl:{self.name} does not take these settings: {error}") from error
        except (ImportError, ValueError) as error:
            raise ConfigError(f"jaxmarl:{self.name} cannot be made: {error}") from error
        return made

    @functools.cached_property
    def _seen(self) -> dict[AgentId, Any]:
        """Returns shapes and dtypes of the observations, by agent."""
        seen: dict[AgentId, Any] = jax.eval_shape(self._environment.reset, jax.random.PRNGKey(0))[0]
        return seen

    @functools.cached_property
    def _spaces(self) -> dict[AgentId, tuple[specs.Array, specs.Array]]:
        """Returns the specs of observations and of JaxMARL's own actions, by agent."""
        environment, of = self._environment, f"jaxmarl:{self.name}"
        with jax.ensure_compile_time_eval():  # Where a step is compiled, the bounds are numbers all the same.
            spaces = {
                agent_id: (
                    spec_of_space(environment.observation_space(agent_id), "observation", of),
                    spec_of_space(environment.action_space(agent_id), "action", of),
                )
                for agent_id in environment.agents
            }
        return {
            agent_id: (as_given(own, self._seen[agent_id], of), action) for agent_id, (own, action) in spaces.items()
        }

    @functools.cached_property
    def _has_masks(self) -> bool:
        """Returns whether JaxMARL says which actions there are."""
        try:
            jax.eval_shape(lambda key: self._masks(self._environment.reset(key)[1]), jax.random.PRNGKey(0))
        except (NotImplementedError, AttributeError):
            return False
        return True

    @functools.cached_property
    def _dtypes(self) -> Nest:
        return dtypes_after_a_step(
            lambda key: self._environment.reset(key)[1],
            lambda state, action: self._environment.step_env(jax.random.PRNGKey(0), state, self._scale(action))[1],
            self.action_spec(),
        )

    def observation_spec(self) -> dict[AgentId, Nest]:
        """Returns the specs of its observation spaces, with masks where there are any."""
        found: dict[AgentId, Nest] = {agent_id: own for agent_id, (own, _) in self._spaces.items()}
        if not self._has_masks:
            return found
        counts = {agent_id: getattr(action, "num_values", 0) for agent_id, (_, action) in self._spaces.items()}
        return {
            agent_id: {"observation": own, specs.ACTION_MASK: specs.Array((counts[agent_id],), bool, specs.ACTION_MASK)}
            for agent_id, own in found.items()
        }

    def check_observations(self) -> None:
        """Refuses, with a `SpecError`, observations of other sizes than JaxMARL's own spaces say, or other spaces."""
        for agent_id, (own, _) in self._spaces.items():
            if (found := self._seen[agent_id]).size != math.prod(own.shape):
                raise SpecError(
                    f"jaxmarl:{self.name}: its observation space says {list(own.shape)} of {agent_id}, and its "
                    f"observations are {list(found.shape)}: a mistake of JaxMARL's. Take another environment of its."
                )

    def action_spec(self) -> dict[AgentId, specs.Array]:
        """Returns the specs of its actions: choices, or float32 in [-1, 1]."""
        return {
            agent_id: own
            if isinstance(own, specs.DiscreteArray)
            else specs.BoundedArray(own.shape, np.float32, -1.0, 1.0, "action")
            for agent_id, (_, own) in self._spaces.items()
        }

    def _scale(self, action: dict[AgentId, Array]) -> dict[AgentId, Array]:
        return {agent_id: to_bounds(action[agent_id], own) for agent_id, (_, own) in self._spaces.items()}

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        observations, state = self._environment.reset(key)
        return cast(state, self._dtypes), first_step_of(self._observed(observations, state))

    def step(self, state: Any, action: dict[AgentId, Array], key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes the actions of all."""
        observations, state, rewards, dones, info = self._environment.step_env(key, state, self._scale(action))
        is_over = dones["__all__"]
        is_cut = is_over & self._is_at_its_limit(state, info)
        rewards = {agent_id: jnp.reshape(rewards[agent_id], ()) for agent_id in self._spaces}
        timestep = next_step_of(self._observed(observations, state), rewards, is_over & ~is_cut, is_cut)
        return cast(state, self._dtypes), timestep

    def _is_at_its_limit(self, state: Any, info: Mapping[str, Any]) -> Array:
        count_of = getattr(state, "state", state)  # SMAX with enemies that play by themselves has its state inside.
        for limit, count in _LIMITS.items():
            if hasattr(self._environment, limit) and hasattr(count_of, count):
                return jnp.asarray(getattr(count_of, count) >= getattr(self._environment, limit))
        return jnp.asarray(info.get("truncation", 0)) > 0

    def _observed(self, observations: dict[AgentId, Array], state: Any) -> dict[AgentId, Nest]:
        seen: dict[AgentId, Nest] = {
            agent_id: jnp.reshape(jnp.asarray(observations[agent_id], own.dtype), own.shape)
            for agent_id, (own, _) in self._spaces.items()
        }
        if not self._has_masks:
            return seen
        masks = self._masks(state)
        return {
            agent_id: {"observation": each, specs.ACTION_MASK: jnp.asarray(masks[agent_id], bool)}
            for agent_id, each in seen.items()
        }

    def _masks(self, state: Any) -> dict[AgentId, Array]:
        if hasattr(self._environment, "get_legal_moves"):  # Hanabi's name for it.
            legal: dict[AgentId, Array] = self._environment.get_legal_moves(state)
            return legal
        available: dict[AgentId, Array] = self._environment.get_avail_actions(state)
        return available


def _looked_up(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with scenarios and layouts in the places of their names."""
    found = dict(settings)
    layouts = overcooked_v2_layouts if name == "overcooked_v2" else overcooked_layouts
    for setting, known in (("scenario", MAP_NAME_TO_SCENARIO), ("layout", layouts)):
        if isinstance(given := found.get(setting), str):
            if given not in known:
                raise unknown_name(f"{setting} of jaxmarl:{name}", given, known)
            found[setting] = known[given]
    return found
