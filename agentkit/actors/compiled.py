"""Compiles a policy once, however many actors act by it (decision 95)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy, unchanged
from agentkit.child import check_not_forked
from agentkit.types import FIRST, LAST, Nest

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
        """Acts in N environments: ``(params, key, observation, state, step_type)``, the last three of ``[N, ...]``."""

        def act(params: Any, key: Any, observation: Nest, state: Nest, step_type: Any) -> tuple:
            key, act_key = jax.random.split(key)
            action, state, extras = act_in_each(self.policy, params, act_key, observation, state, step_type)
            return action, key, state, extras

        return jax.jit(act, **compiler_options())

    @functools.cached_property
    def act_in_some(self) -> Callable[..., tuple]:
        """Acts in M of N environments, as `act_in_some` by this policy."""
        return jax.jit(functools.partial(act_in_some, self.policy), **compiler_options())


def count_acting(step_type: Any) -> Any:
    """Returns in how many environments an action is a step, int32 ``[]``: the call after LAST resets instead."""
    return jnp.sum(step_type != LAST, dtype=jnp.int32)


def act_in_each(
    policy: Policy, params: Any, key: Any, observation: Nest, state: Nest, step_type: Any, num_agents: int = 1
) -> tuple:
    """Returns actions, new states and extras of N environments, leaves ``[N, ...]``; to be compiled.

    Args:
        policy: of a single environment.
        params: that it acts with.
        key: PRNG key ``uint32[2]``, of which each environment gets one.
        observation: leaves ``[N, ...]``.
        state: of the policy, likewise.
        step_type: of the time steps that the observations are of, ``[N]``.
        num_agents: of which these are the environments, as many of each; an agent's schedules count its own steps.
    """
    num_steps = count_acting(step_type) // num_agents

    def act_one(key: Any, observation: Nest, state: Nest, step_type: Any) -> tuple:
        is_first = step_type == FIRST
        state = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), policy.reset(state), state)
        return policy.act(params, key, observation, policy.begin(state, 0, num_steps))

    found: tuple = jax.vmap(act_one)(jax.random.split(key, step_type.shape[0]), observation, state, step_type)
    return found


def act_in_some(
    policy: Policy, params: Any, key: Any, observation: Nest, states: Nest, step_type: Any, numbers: Any
) -> tuple:
    """Returns actions ``[M, ...]`` in M of N environments, the new key, the new states of all N, and extras.

    Args:
        policy: of a single environment.
        params: that it acts with.
        key: PRNG key ``uint32[2]``.
        observation: leaves ``[M, ...]``.
        states: of the policy, leaves ``[N, ...]``.
        step_type: of the time steps that the observations are of, ``[M]``.
        numbers: of the environments to act in, ``[M]``; of one that is N no state is kept.
    """
    key, act_key = jax.random.split(key)
    own = jax.tree.map(lambda x: x[numbers], states)
    action, new, extras = act_in_each(policy, params, act_key, observation, own, step_type)
    states = count_others(policy, states, step_type)
    return action, key, jax.tree.map(lambda old, x: old.at[numbers].set(x), states, new), extras


def count_others(policy: Policy, states: Nest, step_type: Any) -> Nest:
    """Returns the states of a policy where it does not act, whose counts have the others' steps in them, too.

    Args:
        policy: of a single environment.
        states: its own, leaves ``[N, ...]``.
        step_type: of the time steps at which it acts elsewhere, see `count_acting`.
    """
    if not jax.tree.leaves(states):
        return states
    num_steps = count_acting(step_type)
    return jax.vmap(lambda state: policy.begin(state, num_steps, num_steps))(states)


def compiled(policy: Policy | CompiledPolicy) -> CompiledPolicy:
    """Returns a policy as one that can be compiled; itself if it is."""
    check_not_forked()
    return policy if isinstance(policy, CompiledPolicy) else CompiledPolicy(policy)
