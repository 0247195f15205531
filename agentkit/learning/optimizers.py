"""Gradient steps: Adam, a step of any optimiser, and the norm of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from agentkit.learning.schedules import Schedule, value_at
from agentkit.types import Array, Params

if TYPE_CHECKING:
    import optax


def adam(
    learning_rate: float | Schedule,
    max_grad_norm: float | None = None,
    *,
    epsilon: float = 1e-8,
    steps_per_update: float = 1.0,
) -> optax.GradientTransformation:
    """Builds Adam (Kingma & Ba 2015), after clipping the gradients to a global norm if one is given.

    Its moments are two flat vectors: on small networks, where each operation costs more than its
    arithmetic, that makes an update a quarter faster than one moment for each parameter array.

    Args:
        learning_rate: the step size; a schedule counts this optimiser's own updates.
        max_grad_norm: largest global norm; None for no clipping.
        epsilon: added to the root of the second moment.
        steps_per_update: environment steps for each update, for schedules that count steps.
    """
    import optax  # Not at import time: actors load this file, and optimise nothing.

    rate: float | Schedule | Callable[[Array], Array] = learning_rate
    if isinstance(learning_rate, Schedule):
        rate = lambda count: value_at(learning_rate, steps=count * steps_per_update, updates=count)  # noqa: E731
    optimizer = optax.adam(rate, eps=epsilon)
    if max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optimizer)
    return optax.flatten(optimizer)


def optimizer_step(
    optimizer: optax.GradientTransformation,
    grads: Params,
    params: Params,
    opt_state: optax.OptState,
    scale: Array | float = 1.0,
) -> tuple[Params, optax.OptState]:
    """Returns parameters and optimiser state after a step along `grads`, whose size is multiplied by `scale`."""
    steps, opt_state = optimizer.update(grads, opt_state, params)
    return jax.tree.map(lambda x, step: x + scale * step, params, steps), opt_state


def global_norm(grads: Params) -> Array:
    """Returns the global l2 norm; our own, since newer versions of optax deprecate the Reverb stack's name for it."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(grads)))
