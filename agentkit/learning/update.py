"""An algorithm is an `Update`, three pure functions; `sgd` makes one of a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.errors import SpecError
from agentkit.learning.optimizers import global_norm, optimizer_step
from agentkit.learning.targets import TargetUpdate
from agentkit.types import Array, LossOutput, Nest, Params, ReplaySample

if TYPE_CHECKING:
    import optax


class UpdateOutput(NamedTuple):
    """Holds the results of an update beside its new state.

    Attributes:
        metrics: dict of scalars.
        priorities: new priorities of the batch's items ``[B]``, or None.
    """

    metrics: dict[str, Array]
    priorities: Array | None = None


class Update(NamedTuple):
    """Holds an algorithm, as the learner runs it: pure functions that may be compiled.

    Attributes:
        init: ``key -> state``, the training state (parameters, optimiser states, key, ...).
        update: ``(state, batch) -> (state, UpdateOutput)``, one gradient step on one batch.
        variables: ``state -> {name: params}``, what actors may fetch; "policy" is what they act with.
        gradient: ``(params, batch, key) -> grads``, the first half of `update`, for actors that compute gradients;
            None where a gradient needs more than the variable "policy", such as a target network, or where the update
            keeps statistics of the data, which gradients do not carry.
        apply: ``(state, grads) -> state``, the second half; None likewise.
    """

    init: Callable[[jax.Array], Nest]
    update: Callable[[Nest, ReplaySample[Nest]], tuple[Nest, UpdateOutput]]
    variables: Callable[[Nest], Mapping[str, Nest]]
    gradient: Callable[[Params, ReplaySample[Nest], jax.Array], Params] | None = None
    apply: Callable[[Nest, Params], Nest] | None = None


Loss = Callable[[Params, Any, ReplaySample[Any], jax.Array], LossOutput]
"""``(params, state, batch, key) -> LossOutput``; the state is the update's own, from before the step."""


class SgdState(NamedTuple):
    """Holds the training state of `sgd`.

    Attributes:
        params: the parameters that the loss is differentiated by.
        target_params: a lagged copy of them; ``()`` where there is no target network.
        opt_state: the optimiser's state.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    params: Params
    target_params: Params
    opt_state: optax.OptState
    key: jax.Array
    num_updates: Array


def sgd(
    loss: Loss,
    init_params: Callable[[jax.Array], Params],
    optimizer: optax.GradientTransformation,
    target_update: TargetUpdate | None = None,
) -> Update:
    """Builds the update of one loss, one set of parameters and one optimiser: that of most value-based algorithms.

    Args:
        loss: what to minimise, of a `SgdState`; of ``()`` in its place where actors compute the gradients.
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

    def update(state: SgdState, batch: ReplaySample[Nest]) -> tuple[SgdState, UpdateOutput]:
        # fold_in, not split: XLA drops it if the loss ignores the key.
        loss_key = jax.random.fold_in(state.key, state.num_updates)
        grads, output = jax.grad(objective(loss), has_aux=True)(state.params, state, batch, loss_key)
        metrics = {"loss": output.loss, "grad_norm": global_norm(grads), **output.metrics}
        return _follow(state, grads, optimizer, target_update), UpdateOutput(metrics, output.priorities)

    def variables(state: SgdState) -> dict[str, Params]:
        return {"policy": state.params}

    if target_update is not None:
        return Update(init, update, variables)

    def gradient(params: Params, batch: ReplaySample[Nest], key: jax.Array) -> Params:
        return jax.grad(objective(loss), has_aux=True)(params, (), batch, key)[0]

    def apply(state: SgdState, grads: Params) -> SgdState:
        return _follow(state, grads, optimizer, None)

    return Update(init, update, variables, gradient, apply)


def objective(loss: Callable[..., LossOutput], metrics: Iterable[str] = ()) -> Callable[..., tuple[Array, LossOutput]]:
    """Returns a loss as ``jax.grad(..., has_aux=True)`` takes it, with its output checked while JAX traces it.

    Args:
        loss: ``(params, *given) -> LossOutput``.
        metrics: names of metrics that the update needs of the loss.

    Returns:
        ``(params, *given) -> (loss [], LossOutput)``.

    Raises:
        SpecError: the loss has the arguments of an earlier form; or when it is called, that it returned something else.
    """
    _check_arguments(loss)

    def differentiated(params: Params, *given: Any) -> tuple[Array, LossOutput]:
        output = check_loss_output(loss(params, *given), metrics)
        return output.loss, output

    return differentiated


_EARLIER = {
    "target_params": "state.target_params",
    "coefficients": "value_in_update(config.clip_epsilon, batch) and the like, and state.kl_cost",
    "entropy_cost": "value_in_update(config.entropy_cost, batch)",
}
"""Second arguments that losses had before all of them took the training state."""


def _check_arguments(loss: Callable[..., LossOutput]) -> None:
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # Some callables have no signature.
        return
    for name in names[1:2]:
        if name in _EARLIER:
            raise SpecError(
                f"A loss takes (params, state, batch, key), found ({', '.join(names)}). The second argument is the "
                f"update's training state now: take {_EARLIER[name]}."
            )


def check_loss_output(output: LossOutput, metrics: Iterable[str] = ()) -> LossOutput:
    """Returns what a loss returned, which is checked while JAX traces it.

    Args:
        output: of the loss.
        metrics: names of metrics that it must have.

    Raises:
        SpecError: it is no `LossOutput`, its loss is not one number, or it lacks a metric.
    """
    if not all(hasattr(output, name) for name in LossOutput._fields):
        raise SpecError(
            f"The loss must return a LossOutput(loss, metrics, priorities), found {type(output).__name__}. "
            "Wrap it: LossOutput(loss, {}, None)."
        )
    if jnp.shape(output.loss) != ():
        raise SpecError(
            f"The loss must be one number, found the shape {jnp.shape(output.loss)}. Take the mean over the batch."
        )
    for name in metrics:
        if name not in output.metrics:
            raise SpecError(
                f"The loss must return a metric {name!r}, which the update needs, found {sorted(output.metrics)}."
            )
    return output


def _follow(
    state: SgdState, grads: Params, optimizer: optax.GradientTransformation, target_update: TargetUpdate | None
) -> SgdState:
    """Returns the state after one step along `grads`."""
    params, opt_state = optimizer_step(optimizer, grads, state.params, state.opt_state)
    num_updates = state.num_updates + 1
    target_params = state.target_params
    if target_update is not None:
        target_params = target_update(params, target_params, num_updates)
    return SgdState(params, target_params, opt_state, state.key, num_updates)
