"""Any game in turns in JAX as an ordinary environment: numpy arrays of whoever acts, one move a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, final

import jax
import numpy as np
import tree

from agentkit import specs
from agentkit.child import check_not_forked
from agentkit.envs.jax.dm_environment import (
    CompiledSteps,
    attributes_of,
    cast_action,
    kind_of_step,
    on_cpu,
    to_numpy,
)
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.errors import SpecError
from agentkit.types import LAST, AgentId, Nest


@final
class HostTurnEnvironment(TurnEnvironment):
    """Steps a game in turns in JAX from Python: for evaluations, and for every mode on the host.

    It runs on the CPU, where a step at a time is quickest.

    Attributes:
        jax_environment: the environment inside.
    """

    def __init__(self, environment: JaxTurnEnvironment, seed: int = 0):
        """Compiles nothing before the first reset; equal environments are compiled once."""
        check_not_forked()
        self.jax_environment = environment
        self._compiled = CompiledSteps(environment)
        of_all = environment.agent_specs()
        self._ids = list(of_all)
        self._no_actions = {each: specs.zeros(spec.actions) for each, spec in of_all.items()}
        self._state: Any = None
        self._is_over = True
        super().__init__(
            {each: one_reward_spec(spec.observations, spec.actions) for each, spec in of_all.items()}, seed
        )

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._key = on_cpu(jax.random.PRNGKey(seed))  # Where the key is, all else is computed.

    @functools.cached_property
    def _turn(self) -> Callable[[Any], jax.Array]:
        return _compiled_turn(self.jax_environment, attributes_of(self.jax_environment))

    def _start(self) -> None:
        self._key, self._state, timestep = self._compiled.reset(self._key)
        self._seen, self._is_over = timestep.observation, False

    def _advance(self, actions: Mapping[AgentId, Nest]) -> None:
        ((mover, given),) = actions.items()
        action = tree.map_structure(cast_action, self._specs[mover].actions, given)
        self._check_allowed(mover, action)
        self._key, self._state, timestep = self._compiled.step(
            self._key, self._state, {**self._no_actions, mover: action}
        )
        kind = kind_of_step(np.asarray(timestep.step_type), self.jax_environment)
        self._seen, self._is_over = timestep.observation, kind == LAST
        for agent_id in self._ids:
            self._reward(agent_id, float(timestep.reward[agent_id]), float(timestep.discount[agent_id]))
            if self._is_over:
                self._end(agent_id, self._observe(agent_id), terminated=False)  # The step's discount says whether.

    def _check_allowed(self, mover: AgentId, action: Nest) -> None:
        mask = specs.find_action_mask(self._seen[mover], self._specs[mover].actions)
        if mask is not None and not np.asarray(mask)[action]:
            raise SpecError(f"{mover!r} took action {action}, which is not allowed; see the action_mask.")

    def _acting(self) -> Iterable[AgentId]:
        return () if self._is_over else (self._ids[int(self._turn(self._state))],)

    def _observe(self, agent_id: AgentId) -> Nest:
        return to_numpy(self._seen[agent_id])

    def state_spec(self) -> Nest | None:
        """Returns the spec of what a centralised critic may see; None where there is no such state."""
        return self.jax_environment.state_spec()

    def state(self) -> Nest:
        """Returns the state as it is now."""
        return to_numpy(self.jax_environment.global_state(self._state))

    def render(self) -> np.ndarray:
        """Returns an image of where it stands, as `JaxEnvironment.render` draws it."""
        return self.jax_environment.render(self._state)


@functools.lru_cache(maxsize=16)
def _compiled_turn(environment: JaxTurnEnvironment, attributes: Hashable) -> Callable[[Any], jax.Array]:
    del attributes  # What they were is compiled in.
    # Of a function of its own: of a method JAX would find what it has compiled for other attributes.
    return jax.jit(lambda state: environment.turn(state))
