"""Epsilon-greedy exploration: the best action by value, and now and then any action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Params, Policy
from agentkit.errors import ConfigError
from agentkit.types import Array, Nest

LADDER_EPSILON = 0.4
LADDER_ALPHA = 7.0
"""Of `epsilon_ladder`, as in the paper."""

Schedule = Callable[[Array], Any]
"""``num_steps -> value``: a number that changes with an actor's own steps, int32 ``[]``."""


def linear(start: float, end: float, num_steps: int) -> Schedule:
    """From `start` to `end` over `num_steps` steps, and `end` from then on.

    Raises:
        ConfigError: over less than one step.
    """
    if num_steps < 1:
        raise ConfigError(f"epsilon_steps must be at least 1, found {num_steps}.")
    return lambda step: start + jnp.minimum(step / num_steps, 1.0) * (end - start)


def explore(key: jax.Array, q: Array, epsilon: Array | float) -> Array:
    """An action, int32 ``[]``: uniform with probability `epsilon`, else the best by values `q` ``[A]``."""
    chance, which = jax.random.uniform(key, (2,))
    random_action = jnp.floor(which * q.shape[-1]).astype(jnp.int32)
    return jnp.where(chance < epsilon, random_action, jnp.argmax(q).astype(jnp.int32))


def epsilon_greedy(q_values: Callable[[Params, Nest], Array], epsilon: Schedule) -> Policy:
    """The policy that explores so; its state is the number of steps taken, int32 ``[]``.

    Args:
        q_values: ``(params, observation [B, ...]) -> [B, A]``; draws nothing.
        epsilon: chance of a uniform action, by the number of steps taken.
    """

    def act(params: Params, key: jax.Array, observation: Nest, num_steps: Array) -> tuple[Nest, Nest, Nest]:
        q = q_values(params, jax.tree.map(lambda x: x[None], observation))[0]  # [A]
        return explore(key, q, epsilon(num_steps)), num_steps + 1, ()

    return Policy(act, init=lambda key: jnp.zeros((), jnp.int32))


def epsilon_ladder(q_values: Callable[[Params, Nest], Array]) -> Policy:
    """Epsilon-greedy with an epsilon that each actor keeps, from 0.4 down to 0.0007.

    Of N that explore together, the i-th has 0.4^(1 + 7 i / (N - 1)) (Horgan et al. 2018, "Distributed Prioritized
    Experience Replay", 1803.00933, section 4.1); one alone has 0.4. The state is that epsilon, float32 ``[]``.

    Args:
        q_values: ``(params, observation [B, ...]) -> [B, A]``; draws nothing.
    """

    def act(params: Params, key: jax.Array, observation: Nest, epsilon: Array) -> tuple[Nest, Nest, Nest]:
        q = q_values(params, jax.tree.map(lambda x: x[None], observation))[0]  # [A]
        return explore(key, q, epsilon), epsilon, ()

    def spread(epsilon: Array, index: Array, count: int) -> Array:
        return epsilon ** (1.0 + LADDER_ALPHA * index / jnp.maximum(count - 1, 1))

    return Policy(act, init=lambda key: jnp.float32(LADDER_EPSILON), spread=spread)
