"""An algorithm's mathematics: an `Update` is three pure functions, `sgd` makes one of a loss, and targets follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.types import Array, LossOutput, Nest, ReplaySample

if TYPE_CHECKING:
    import optax

Params = Any
Loss = Callable[[Params, Params, ReplaySample, jax.Array], LossOutput]
"""``(params, target_params, batch, key) -> LossOutput``."""

TargetUpdate = Callable[[Any, Any, Any], Any]
"""``(params, target_params, num_updates) -> target_params``."""


class UpdateOutput(NamedTuple):
    """What an update tells the world.

    Attributes:
        metrics: dict of scalars.
        priorities: new priorities of the batch's items ``[B]``, or None.
    """

    metrics: dict[str, Array]
    priorities: Array | None = None


class Update(NamedTuple):
    """An algorithm, as the learner runs it. All three are pure and may be compiled.

    Attributes:
        init: ``key -> state``, the training state (parameters, optimiser states, key, ...).
        update: ``(state, batch) -> (state, UpdateOutput)``, one gradient step on one batch.
        variables: ``state -> {name: params}``, what actors may fetch; "policy" is what they act with.
        gradient: ``(params, batch, key) -> grads``, the first half of `update`, for actors that compute gradients;
            None where a gradient needs more than the variable "policy", such as a target network.
        apply: ``(state, grads) -> state``, the second half; None likewise.
    """

    init: Callable[[jax.Array], Nest]
    update: Callable[[Nest, ReplaySample], tuple[Nest, UpdateOutput]]
    variables: Callable[[Nest], Mapping[str, Nest]]
    gradient: Callable[[Params, ReplaySample, jax.Array], Params] | None = None
    apply: Callable[[Nest, Params], Nest] | None = None


class SgdState(NamedTuple):
    """The training state of `sgd`.

    Attributes:
        params: the parameters that the loss is differentiated by.
        target_params: a lagged copy of them; ``()`` where there is no target network.
        opt_state: the optimiser's state.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    params: Params
    target_params: Params
    opt_state: Any
    key: jax.Array
    num_updates: Array


def sgd(
    loss: Loss,
    init_params: Callable[[jax.Array], Params],
    optimizer: optax.GradientTransformation,
    target_update: TargetUpdate | None = None,
) -> Update:
    """One loss, one set of parameters, one optimiser: the whole of most value-based algorithms.

    Args:
        loss: what to minimise.
        init_params: ``key -> params``.
        optimizer: an optax transformation (clip gradients there).
        target_update: how target parameters follow (`periodic`, `polyak`); None for no target.

    Returns:
        An `Update` that publishes ``params`` under the name "policy".
    """

    def init(key: jax.Array) -> SgdState:
        key, params_key = jax.random.split(key)
        params = init_params(params_key)
        target_params = () if target_update is None else jax.tree.map(jnp.copy, params)
        return SgdState(params, target_params, optimizer.init(params), key, jnp.zeros((), jnp.int32))

    def update(state: SgdState, batch: ReplaySample) -> tuple[SgdState, UpdateOutput]:
        # A loss that draws nothing makes this dead code; a split, whose half is kept, would be run.
        loss_key = jax.random.fold_in(state.key, state.num_updates)

        def objective(params: Params) -> tuple[Array, LossOutput]:
            output = loss(params, state.target_params, batch, loss_key)
            return output.loss, output

        grads, output = jax.grad(objective, has_aux=True)(state.params)
        metrics = {"loss": output.loss, "grad_norm": global_norm(grads), **output.metrics}
        return _descend(state, grads, optimizer, target_update), UpdateOutput(metrics, output.priorities)

    def variables(state: SgdState) -> dict[str, Params]:
        return {"policy": state.params}

    if target_update is not None:
        return Update(init, update, variables)

    def gradient(params: Params, batch: ReplaySample, key: jax.Array) -> Params:
        return jax.grad(lambda p: loss(p, (), batch, key).loss)(params)

    def apply(state: SgdState, grads: Params) -> SgdState:
        return _descend(state, grads, optimizer, None)

    return Update(init, update, variables, gradient, apply)


def periodic(period: int) -> TargetUpdate:
    """Copies the parameters every `period` updates (Mnih et al. 2015)."""
    if period < 1:
        raise ConfigError(f"The target update period must be at least 1, found {period}.")
    import optax  # Not at import time: actors load this file, and optimise nothing.

    def update(params: Any, target_params: Any, num_updates: Any) -> Any:
        return optax.periodic_update(params, target_params, jnp.asarray(num_updates), period)

    return update


def polyak(tau: float) -> TargetUpdate:
    """Moves the target a fraction `tau` towards the parameters at each update (Lillicrap et al. 2016)."""
    if not 0 < tau <= 1:
        raise ConfigError(f"The Polyak rate tau must be in (0, 1], found {tau}.")
    import optax

    def update(params: Any, target_params: Any, num_updates: Any) -> Any:
        del num_updates
        return optax.incremental_update(params, target_params, tau)

    return update


def apply_gradients(update: Update) -> Update:
    """`update` for a learner whose batches are gradients that others computed, as actors do in A3C (Mnih et al. 2016).

    A batch's data have the structure of the parameters, ``[B, ...]``; their mean is one step.

    Raises:
        ConfigError: `update` cannot take gradients from outside.
    """
    apply = update.apply
    if apply is None:
        raise ConfigError(
            "This update keeps its gradients to itself. Expected one of `sgd` without a target network, or an `Update` "
            "with `gradient` and `apply`."
        )

    def step(state: Nest, batch: ReplaySample) -> tuple[Nest, UpdateOutput]:
        grads = jax.tree.map(lambda grad: jnp.mean(grad, axis=0), batch.data)
        return apply(state, grads), UpdateOutput({"grad_norm": global_norm(grads)})

    return Update(update.init, step, update.variables)


def _descend(
    state: SgdState, grads: Params, optimizer: optax.GradientTransformation, target_update: TargetUpdate | None
) -> SgdState:
    """The state after one step along `grads`."""
    import optax  # Not at import time: actors load this file, and optimise nothing.

    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    num_updates = state.num_updates + 1
    target_params = state.target_params
    if target_update is not None:
        target_params = target_update(params, target_params, num_updates)
    return SgdState(params, target_params, opt_state, state.key, num_updates)


def global_norm(grads: Params) -> Array:
    """The global l2 norm; our own, since newer versions of optax deprecate the Reverb stack's name for it."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(grads)))


def adam(learning_rate: float, max_grad_norm: float | None = None) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015), after clipping the gradients to a global norm if one is given.

    Its moments are two flat vectors: on small networks, where each operation costs more than its
    arithmetic, that makes an update a quarter faster than one moment for each parameter array.
    """
    import optax

    optimizer = optax.adam(learning_rate)
    if max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optimizer)
    return optax.flatten(optimizer)
