"""Losses of agents whose policy imitates the data's better actions (IQL, CRR). Everything is batched, ``[B]``.

A value that is an upper expectile says which actions are better, and weights by their advantage say how much more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.types import Array


def expectile_loss(error: Array, expectile: float) -> jax.Array:
    """Returns |tau - 1(u < 0)| u^2, ``[B]``, which leads to a target's upper values (Kostrikov et al. 2021, eq. 4).

    Args:
        error: u, target less estimate, ``[B]``.
        expectile: tau in (0, 1); at 0.5 the estimate tends to the target's mean, at 1 to its maximum.
    """
    return jnp.where(error < 0, 1.0 - expectile, expectile) * jnp.square(error)


def exponential_weights(advantage: Array, temperature: float, max_weight: float) -> jax.Array:
    """Returns min(exp(advantage / temperature), max_weight), ``[B]``, without gradient (Peng et al. 2019, eq. 10)."""
    exponent = jnp.minimum(advantage / temperature, jnp.log(max_weight))  # exp would overflow before it is clipped.
    return jax.lax.stop_gradient(jnp.exp(exponent))


def binary_weights(advantage: Array) -> jax.Array:
    """Returns 1 where the advantage is above 0, else 0, ``[B]`` (Wang et al. 2020, 2006.15134, eq. 3)."""
    return jax.lax.stop_gradient(advantage > 0).astype(advantage.dtype)
