"""Memory chain in JAX: remember a bit shown at the start until it is asked for."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.envs.base import check_size
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.types import Array


class MemoryChainState(NamedTuple):
    """Holds the steps of the episode so far and the bit, int32 ``[]``."""

    time: Array
    bit: Array


@final
@dataclasses.dataclass(frozen=True)
class MemoryChain(JaxEnvironment):
    """Shows a bit and asks for it as `agentkit.envs.memory_chain.MemoryChain` does, which says how.

    Attributes:
        length: steps from the cue to the question.
    """

    length: int = 5

    def __post_init__(self) -> None:
        """Refuses an impossible length."""
        check_size("length", self.length)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns float32 ``[3]`` in [-1, 1]."""
        return specs.BoundedArray((3,), np.float32, -1.0, 1.0, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns a spec of the answers, 0 and 1."""
        return specs.DiscreteArray(2, dtype=np.int32, name="action")

    def reset(self, key: Array) -> tuple[MemoryChainState, dm_env.TimeStep]:
        """Draws a bit, and shows it."""
        state = MemoryChainState(jnp.int32(0), jax.random.randint(key, (), 0, 2, jnp.int32))
        return state, first_step(self._observation(state))

    def step(self, state: MemoryChainState, action: Array, key: Array) -> tuple[MemoryChainState, dm_env.TimeStep]:
        """Goes on; the last action is the answer."""
        del key  # Only the bit is random.
        state = MemoryChainState(state.time + 1, state.bit)
        terminated = state.time > self.length
        reward = jnp.where(terminated, jnp.where(action == state.bit, 1.0, -1.0), 0.0)
        return state, next_step(self._observation(state), reward, terminated)

    def _observation(self, state: MemoryChainState) -> Array:
        cue = jnp.where(state.time == 0, 2 * state.bit - 1, 0)
        return jnp.array([cue, state.time / (self.length + 1), state.time == self.length], jnp.float32)
