"""Compiles a policy once, however many actors act by it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy, unchanged
from agentkit.types import Nest

_ONE_THREAD = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@functools.cache
def compiler_options() -> dict[str, Any]:
    """Makes XLA run a call's operations one after the other, where this version of JAX can be told so.

    A small policy is done before another thread has woken up: on 4 cores, 64x64 units took 167 us without
    and 47 us with the option (a matrix product may still use all cores).
    """
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=_ONE_THREAD)(0)
    except (TypeError, jax.errors.JaxRuntimeError):  # Older ones have no such argument, or no such option.
        return {}
    return {"compiler_options": _ONE_THREAD}


@final
class CompiledPolicy:
    """Holds a `Policy` with what JAX has compiled of it: each actor that is given it compiles nothing again.

    Attributes:
        policy: how to act in a single environment.
    """

    def __init__(self, policy: Policy):
        """Compiles nothing yet."""
        self.policy = policy

    @functools.cached_property
    def act(self) -> Callable[..., tuple]:
        """Acts in one environment: ``(params, key, observation, state) -> (action, key, state, extras)``."""

        def act(params: Any, key: Any, observation: Nest, state: Nest) -> tuple:
            key, act_key = jax.random.split(key)
            action, state, extras = self.policy.act(params, act_key, observation, state)
            return action, key, state, extras

        return jax.jit(act, **compiler_options())

    @functools.cached_property
    def reset(self) -> Callable[[Nest], Nest] | None:
        """Begins an episode: ``state -> state``; None where that changes nothing."""
        return None if self.policy.reset is unchanged else jax.jit(self.policy.reset)

    @functools.cached_property
    def act_in_all(self) -> Callable[..., tuple]:
        """Acts in N environments: ``(params, key, observation, state, is_first)``, the last three of ``[N, ...]``."""

        def act(params: Any, key: Any, observation: Nest, state: Nest, is_first: Any) -> tuple:
            key, act_key = jax.random.split(key)
            keys = jax.random.split(act_key, is_first.shape[0])
            action, state, extras = self._act_in_each(params, keys, observation, state, is_first)
            return action, key, state, extras

        return jax.jit(act, **compiler_options())

    @functools.cached_property
    def act_in_some(self) -> Callable[..., tuple]:
        """Acts in M of N environments: ``(params, key, observation, states, is_first, numbers)``.

        States are of all N, ``numbers`` ``[M]`` says in which ones to act; all else is of these.
        """

        def act(params: Any, key: Any, observation: Nest, states: Nest, is_first: Any, numbers: Any) -> tuple:
            key, act_key = jax.random.split(key)
            keys = jax.random.split(act_key, numbers.shape[0])
            own = jax.tree.map(lambda x: x[numbers], states)
            action, new, extras = self._act_in_each(params, keys, observation, own, is_first)
            return action, key, jax.tree.map(lambda old, x: old.at[numbers].set(x), states, new), extras

        return jax.jit(act, **compiler_options())

    def _act_in_each(self, params: Any, keys: Any, observation: Nest, state: Nest, is_first: Any) -> tuple:
        def act_one(params: Any, key: Any, observation: Nest, state: Nest, is_first: Any) -> tuple:
            state = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), self.policy.reset(state), state)
            return self.policy.act(params, key, observation, state)

        found: tuple = jax.vmap(act_one, in_axes=(None, 0, 0, 0, 0))(params, keys, observation, state, is_first)
        return found


def compiled(policy: Policy | CompiledPolicy) -> CompiledPolicy:
    """Returns a policy as one that can be compiled; itself if it is."""
    return policy if isinstance(policy, CompiledPolicy) else CompiledPolicy(policy)
