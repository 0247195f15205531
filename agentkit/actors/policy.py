"""Policies: pure functions from observation to action. Actors add the side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentkit.counting import MOST_STEPS
from agentkit.types import Nest, Params

PolicyState = Nest


def _stateless(key: Any) -> PolicyState:
    del key
    return ()


class ActorIndex(NamedTuple):
    """Identifies an actor among those that explore together.

    Attributes:
        actor_id: from 0. From `num_actors` on it begins again: actors that were added later share an index.
        num_actors: how many there are, >= 1.
        num_steps: that its environments have taken together already, where another process goes on.
    """

    actor_id: int = 0
    num_actors: int = 1
    num_steps: int = 0


ALONE = ActorIndex()
"""The index of an actor that explores by itself."""


def _same(state: PolicyState, index: Any, count: int) -> PolicyState:
    del index, count
    return state


def _at_any_step(state: PolicyState, num_steps: Any, num_envs: int) -> PolicyState:
    del num_steps, num_envs
    return state


def unchanged(state: PolicyState) -> PolicyState:
    """Returns the state itself: the reset of a policy whose state outlives episodes."""
    return state


class Policy(NamedTuple):
    """Acts in a single environment: nothing here has a batch axis (actors use `jax.vmap`).

    Attributes:
        act: ``(params, key, observation, state) -> (action, state, extras)``. `key` is fresh at each
            call; `extras` is what adders store beside the action (``()`` for nothing).
        init: ``key -> state``, the state when an actor starts; ``()`` by default.
        reset: ``state -> state``, applied at the start of each episode (a recurrent core returns
            its zero state; a step count for an exploration schedule stays). Unchanged by default.
        diversify: ``(state, index, count) -> state``, applied to the state of `init`: makes those that explore
            together explore differently (an epsilon, or a noise's scale, kept in the state). `index` is
            int32 ``[]`` in [0, count); each of the environments of each actor has one, and both numbers may be
            traced, so that all compile one policy. Unchanged by default.
        begin: ``(state, num_steps, num_envs) -> state``, applied then: tells a policy that counts its actor's steps
            how many more were taken, int32 ``[]``, and how many environments take the next one together. So an actor
            that is started again goes on with its schedules. Of several environments it is applied before each
            action, too, since those whose episodes have ended take no step. Unchanged by default.
        extras_spec: specs of the `extras` that `act` emits, for adders and tables; ``()`` where there are none.
    """

    act: Callable[[Params, Any, Nest, PolicyState], tuple[Nest, PolicyState, Nest]]
    init: Callable[[Any], PolicyState] = _stateless
    reset: Callable[[PolicyState], PolicyState] = unchanged
    diversify: Callable[[PolicyState, Any, int], PolicyState] = _same
    begin: Callable[[PolicyState, Any, int], PolicyState] = _at_any_step
    extras_spec: Nest = ()


def stateless_policy(function: Callable[[Params, Any, Nest], Nest]) -> Policy:
    """Makes a policy without state or extras from ``(params, key, observation) -> action``."""

    def act(params: Params, key: Any, observation: Nest, state: PolicyState) -> tuple[Nest, PolicyState, Nest]:
        return function(params, key, observation), state, ()

    return Policy(act)


def first_state(policy: Policy, key: Any, actor_index: ActorIndex = ALONE, num_envs: int | None = None) -> PolicyState:
    """Returns the state in which an actor starts.

    Args:
        policy: for a single environment.
        key: PRNG key ``uint32[2]``.
        actor_index: the actor; its fields may be traced by `jax.jit`.
        num_envs: N, for leaves ``[N, ...]``; None for one environment, unbatched.
    """
    import jax  # Not at import time: who only asks a server for actions needs none.
    import jax.numpy as jnp

    place = jnp.int32(actor_index.actor_id % actor_index.num_actors)
    taken: Any = actor_index.num_steps
    num_steps = jnp.int32(taken if isinstance(taken, jax.Array) else min(taken, MOST_STEPS))

    def first(key: Any, place: Any) -> PolicyState:
        count = actor_index.num_actors * (num_envs or 1)
        return policy.begin(policy.diversify(policy.init(key), place, count), num_steps, num_envs or 1)

    if num_envs is None or not jax.tree.leaves(jax.eval_shape(first, key, place)):
        return first(key, place)  # Without a state there is nothing to compile for each environment.
    places = place * num_envs + jnp.arange(num_envs, dtype=jnp.int32)  # [N]
    return jax.vmap(first)(jax.random.split(key, num_envs), places)
