"""Gradient steps: Adam, a step of any optimiser, and the norm of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.learning.schedules import Schedule, unit_of
from agentkit.types import Array, Nest, Params

if TYPE_CHECKING:
    import optax


class Told(NamedTuple):
    """Holds the state of an optimiser's schedule: `count`, int32 or float32 ``[]``, as `tell_counts` told it last."""

    count: Array


class ToldSteps(Told):
    """Counts environment steps."""


class ToldUpdates(Told):
    """Counts the learner's updates."""


def tell_counts(state: Nest, *, steps: Array, updates: Array) -> Nest:
    """Returns a training state whose optimisers' schedules stand at these counts; `Learner` calls it at each update.

    An optimiser knows its own updates only, which are neither steps nor, where it is one of several, the learner's.

    Args:
        state: a nest that may have states of `adam` in it.
        steps: environment steps so far; ``()`` where nobody has counted them.
        updates: the learner's updates so far; likewise.

    Raises:
        ConfigError: a schedule is of what nobody has counted.
    """

    def tell(node: Any) -> Any:
        if not isinstance(node, Told):
            return node
        name, count = ("steps", steps) if isinstance(node, ToldSteps) else ("updates", updates)
        if isinstance(count, tuple):
            raise ConfigError(
                f'A learning rate by="{name}" needs a count of {name}, found none. Give the Learner '
                f'LearnerCallbacks(count_steps=...), or use a schedule by="updates".'
            )
        return type(node)(jnp.asarray(count, node.count.dtype))

    return jax.tree.map(tell, state, is_leaf=lambda node: isinstance(node, Told))


def adam(
    learning_rate: float | Schedule, max_grad_norm: float | None = None, *, epsilon: float = 1e-8, b1: float = 0.9
) -> optax.GradientTransformation:
    """Builds Adam (Kingma & Ba 2015), after clipping the gradients to a global norm if one is given.

    Its moments are two flat vectors: on small networks, where each operation costs more than its
    arithmetic, that makes an update a quarter faster than one moment for each parameter array.

    Args:
        learning_rate: the step size; a schedule stands where `tell_counts` told it last, at first at 0.
        max_grad_norm: largest global norm; None for no clipping.
        epsilon: added to the root of the second moment.
        b1: decay of the first moment.
    """
    import optax  # Not at import time: actors load this file, and optimise nothing.

    if callable(learning_rate):
        optimizer = optax.chain(optax.scale_by_adam(b1, eps=epsilon), _scale_by_schedule(learning_rate))
    else:
        optimizer = optax.adam(learning_rate, b1, eps=epsilon)
    if max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optimizer)
    return optax.flatten(optimizer)


def _scale_by_schedule(schedule: Schedule) -> optax.GradientTransformation:
    """Multiplies what is to be added to parameters by minus the schedule's value."""
    import optax

    def init(params: Params) -> Told:
        del params
        return (ToldSteps if unit_of(schedule) == "steps" else ToldUpdates)(jnp.zeros((), jnp.int32))

    def update(grads: Params, state: Told, params: Params | None = None) -> tuple[Params, Told]:
        del params
        rate = -1 * schedule(state.count)
        return jax.tree.map(lambda g: jnp.asarray(rate, g.dtype) * g, grads), state

    return optax.GradientTransformation(init, update)


def optimizer_step(
    optimizer: optax.GradientTransformation,
    grads: Params,
    params: Params,
    opt_state: optax.OptState,
    scale: Array | float = 1.0,
) -> tuple[Params, optax.OptState]:
    """Returns parameters and optimiser state after a step along `grads`, whose size is multiplied by `scale`.

    Parameters keep their dtypes: `adam` joins gradients of several in one vector, of the widest.
    """
    steps, opt_state = optimizer.update(grads, opt_state, params)
    return jax.tree.map(lambda x, step: (x + scale * step).astype(jnp.result_type(x)), params, steps), opt_state


def global_norm(grads: Params) -> Array:
    """Returns the global l2 norm; our own, since newer versions of optax deprecate the Reverb stack's name for it."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(grads)))
