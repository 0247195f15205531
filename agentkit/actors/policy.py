"""Policies: pure functions from observation to action. Actors add the side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentkit.types import Nest

Params = Any
PolicyState = Nest


def _stateless(key: Any) -> PolicyState:
    del key
    return ()


def unchanged(state: PolicyState) -> PolicyState:
    """The reset of a policy whose state does not depend on where an episode begins."""
    return state


class Policy(NamedTuple):
    """How to act, for a single environment: nothing here has a batch axis (actors use `jax.vmap`).

    Attributes:
        act: ``(params, key, observation, state) -> (action, state, extras)``. `key` is fresh at each
            call; `extras` is what adders store beside the action (``()`` for nothing).
        init: ``key -> state``, the state when an actor starts; ``()`` by default.
        reset: ``state -> state``, applied at the start of each episode (a recurrent core returns
            its zero state; a step count for an exploration schedule stays). Unchanged by default.
    """

    act: Callable[[Params, Any, Nest, PolicyState], tuple[Nest, PolicyState, Nest]]
    init: Callable[[Any], PolicyState] = _stateless
    reset: Callable[[PolicyState], PolicyState] = unchanged


def feed_forward(function: Callable[[Params, Any, Nest], Nest]) -> Policy:
    """A policy without state or extras from ``(params, key, observation) -> action``."""

    def act(params: Params, key: Any, observation: Nest, state: PolicyState) -> tuple[Nest, PolicyState, Nest]:
        return function(params, key, observation), state, ()

    return Policy(act)
