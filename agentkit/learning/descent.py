"""Gradient steps whose size changes while an agent learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from agentkit.types import Array, Nest

if TYPE_CHECKING:
    import optax


def annealed(learning_rate: float, num_rows: Array, anneal_steps: int | None) -> Array:
    """The step size ``[]`` after `num_rows` rows, which falls linearly to 0 in `anneal_steps`; None: it stays."""
    left = 1.0 if anneal_steps is None else jnp.maximum(1.0 - num_rows / anneal_steps, 0.0)
    return jnp.asarray(learning_rate * left)


def descend(
    optimizer: optax.GradientTransformation, learning_rate: Array | float, grads: Nest, params: Nest, opt_state: Any
) -> tuple[Nest, Any]:
    """Parameters and optimiser state after a step along `grads`; the optimiser's own step size is to be 1."""
    steps, opt_state = optimizer.update(grads, opt_state, params)
    return jax.tree.map(lambda x, step: x + learning_rate * step, params, steps), opt_state
