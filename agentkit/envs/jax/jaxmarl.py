"""JaxMARL's environments, unwrapped (Rutherford et al. 2024, 2311.10090). The one file that imports jaxmarl."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.foreign import Settings, cast, dtypes_after_a_step, spec_of_space
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.multi_agent_host import HostMultiAgentEnvironment
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.prefixes import check_known
from agentkit.errors import ConfigError, missing_extra
from agentkit.types import AgentId, Array, Nest

try:
    import jaxmarl
    from jaxmarl.registration import registered_envs
except ImportError as error:
    raise missing_extra("jaxmarl", "jaxmarl") from error


def make(name: str, seed: int = 0, **settings: Any) -> MultiAgentEnvironment:
    """Makes one of JaxMARL's environments, as an ordinary one of several agents.

    Args:
        name: as JaxMARL has it, such as ``MPE_simple_spread_v3`` or ``overcooked``.
        seed: of the episodes.
        **settings: of its class (``max_steps=50``).

    Raises:
        UnknownNameError: there is no such environment; proposes the nearest one.
        ConfigError: it does not take such a setting.
        SpecError: its observations or actions are none that agents take.
    """
    environment = JaxMarl(name, tuple(sorted(settings.items())))
    environment.observation_spec(), environment.action_spec()
    return HostMultiAgentEnvironment(environment, seed)


@final
@dataclasses.dataclass(frozen=True)
class JaxMarl(JaxMultiAgentEnvironment):
    """Steps one of JaxMARL's environments by its own functions, without the reset that its ``step`` has inside.

    An episode is over when it is for all: an agent that is out of the game before acts on, as in JaxMARL's own
    algorithms. The end by its limit of steps is a truncation, all others are terminations. Where it says which actions
    there are, observations become ``{"observation": ..., "action_mask": bool [A]}``. Continuous actions are scaled from
    [-1, 1].

    Attributes:
        name: see `make`.
        settings: likewise, as pairs, so that equal ones are compiled once.
    """

    name: str
    settings: Settings = ()

    @functools.cached_property
    def _environment(self) -> Any:
        check_known("jaxmarl", self.name, registered_envs)
        try:
            return jaxmarl.make(self.name, **dict(self.settings))
        except (TypeError, AssertionError) as error:
            raise ConfigError(f"jaxmarl:{self.name} does not take these settings: {error}") from error

    @functools.cached_property
    def _spaces(self) -> dict[AgentId, tuple[specs.Array, specs.Array]]:
        """Returns the specs of observations and of JaxMARL's own actions, by agent."""
        environment, of = self._environment, f"jaxmarl:{self.name}"
        with jax.ensure_compile_time_eval():  # Where a step is compiled, the bounds are numbers all the same.
            return {
                agent_id: (
                    spec_of_space(environment.observation_space(agent_id), "observation", of),
                    spec_of_space(environment.action_space(agent_id), "action", of),
                )
                for agent_id in environment.agents
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

    def action_spec(self) -> dict[AgentId, specs.Array]:
        """Returns the specs of its actions: choices, or float32 in [-1, 1]."""
        return {
            agent_id: own
            if isinstance(own, specs.DiscreteArray)
            else specs.BoundedArray(own.shape, np.float32, -1.0, 1.0, "action")
            for agent_id, (_, own) in self._spaces.items()
        }

    def _scale(self, action: dict[AgentId, Array]) -> dict[AgentId, Array]:
        scaled = {}
        for agent_id, (_, own) in self._spaces.items():
            given = action[agent_id]
            if not isinstance(own, specs.DiscreteArray):
                given = own.minimum + 0.5 * (given + 1.0) * (own.maximum - own.minimum)
            scaled[agent_id] = given
        return scaled

    def reset(self, key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Begins an episode."""
        observations, state = self._environment.reset(key)
        return cast(state, self._dtypes), first_step_of(self._observed(observations, state))

    def step(self, state: Any, action: dict[AgentId, Array], key: Array) -> tuple[Any, dm_env.TimeStep]:
        """Takes the actions of all."""
        environment = self._environment
        observations, state, rewards, dones, _ = environment.step_env(key, state, self._scale(action))
        is_over = dones["__all__"]
        is_cut = jnp.array(False)
        if hasattr(environment, "max_steps") and hasattr(state, "step"):
            is_cut = is_over & (state.step >= environment.max_steps)
        rewards = {agent_id: jnp.reshape(rewards[agent_id], ()) for agent_id in self._spaces}
        timestep = next_step_of(self._observed(observations, state), rewards, is_over & ~is_cut, is_cut)
        return cast(state, self._dtypes), timestep

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
