"""What agents share that take several steps on the rows of a batch, all inside one compiled call.

Minibatch epochs for PPO; the fit of a value apart from its policy, for REINFORCE; and the policy's step along the
natural gradient before that fit, for NPG and TRPO.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents.common.ranges import Count, Positive
from agentkit.agents.on_policy import OnPolicyConfig, Progress, Rows, RowsLoss, learn_from_segments
from agentkit.learning import Update, adam, optimizer_step
from agentkit.types import Array, Nest

if TYPE_CHECKING:
    import optax

Step = Callable[[Nest, Nest], tuple[Nest, dict[str, Array]]]
"""``(learned, minibatch) -> (learned, metrics)``, a gradient step."""


def gradient_step(
    loss: Callable[[Any, Nest], tuple[Array, dict[str, Array]]],
    optimizer: optax.GradientTransformation,
    learning_rate: Array | float,
) -> Step:
    """A step of ``(params, opt_state)`` down the gradient of a loss ``(params, minibatch) -> (loss [], metrics)``."""

    def step(learned: tuple[Any, Any], minibatch: Nest) -> tuple[tuple[Any, Any], dict[str, Array]]:
        grads, metrics = jax.grad(loss, has_aux=True)(learned[0], minibatch)
        return optimizer_step(optimizer, grads, *learned, learning_rate), metrics

    return step


def run_epochs(
    step: Step,
    learned: Nest,
    data: Nest,
    key: jax.Array,
    *,
    num_epochs: int,
    num_minibatches: int,
    stop: Callable[[dict[str, Array]], Array] | None = None,
) -> tuple[Nest, dict[str, Array]]:
    """Takes a step on every minibatch of every epoch, each epoch in an order of its own.

    Args:
        step: on one minibatch, leaves ``[size / num_minibatches, ...]``.
        learned: what the steps change, e.g. parameters and the optimiser's state.
        data: leaves ``[size, ...]``; `num_minibatches` must divide the size.
        key: PRNG key ``uint32[2]``.
        num_epochs: passes over the data.
        num_minibatches: steps per pass.
        stop: ``metrics -> bool []``. Where it is true the step is not taken, and none after it; None for never.

    Returns:
        What was learned, and the metrics' means over the minibatches that were looked at, with ``epochs``,
        the number of passes that these are.
    """
    data = jax.tree.map(jnp.asarray, data)  # Of numpy's arrays no traced index picks anything.
    size = jax.tree.leaves(data)[0].shape[0]
    minibatches = _orders(key, num_epochs, size).reshape(num_epochs * num_minibatches, -1)

    def look(learned: Nest, indices: Array) -> tuple[Nest, dict[str, Array], Array]:
        stepped, metrics = step(learned, jax.tree.map(lambda x: x[indices], data))
        if stop is None:
            return stepped, metrics, jnp.asarray(False)
        stopped = stop(metrics)
        return jax.tree.map(lambda new, old: jnp.where(stopped, old, new), stepped, learned), metrics, stopped

    def skip(learned: Nest, indices: Array) -> tuple[Nest, dict[str, Array], Array]:
        shapes = jax.eval_shape(look, learned, indices)[1]
        return learned, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), jnp.asarray(True)

    def body(carry: tuple[Nest, Array], indices: Array) -> tuple[tuple[Nest, Array], tuple[dict[str, Array], Array]]:
        learned, stopped = carry
        if stop is None:
            learned, metrics, _ = look(learned, indices)
            return (learned, stopped), (metrics, jnp.asarray(1.0))
        learned, metrics, now = jax.lax.cond(stopped, skip, look, learned, indices)
        return (learned, now), (metrics, 1.0 - stopped)

    (learned, _), (metrics, looked) = jax.lax.scan(body, (learned, jnp.asarray(False)), minibatches)
    means = {name: jnp.sum(x) / jnp.sum(looked) for name, x in metrics.items()}
    return learned, {**means, "epochs": jnp.sum(looked) / num_minibatches}


_LARGEST_SORTED = 2**16


def _orders(key: Array, num_epochs: int, size: int) -> Array:
    """A random order of ``0 ... size - 1`` for each epoch, ``[num_epochs, size]``.

    Sorts words that are an index below random bits: a seventh of the time of `jax.random.permutation`, which
    was a tenth of an update. At least 16 bits are random. Indices whose bits are equal stay in order, next to
    each other, so all but always in one minibatch; larger data are shuffled by JAX.
    """
    if size > _LARGEST_SORTED:
        return jax.vmap(lambda key: jax.random.permutation(key, size))(jax.random.split(key, num_epochs))
    num_bits = (size - 1).bit_length()
    bits = jax.random.bits(key, (num_epochs, size)) >> num_bits << num_bits
    words = jnp.sort(bits | jnp.arange(size, dtype=jnp.uint32)[None], axis=1)
    return (words & ((1 << num_bits) - 1)).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class FittedValueConfig(OnPolicyConfig):
    """Settings of agents that fit the value apart from the policy: their `learning_rate` and `max_grad_norm` are its.

    Attributes:
        num_value_epochs: passes of the value's fit over the data of an update.
        num_minibatches: gradient steps on the value per epoch; divides batch_size * segment_length.
    """

    num_value_epochs: Count = 10
    num_minibatches: Count = 4


def make_networks(environment_spec: specs.EnvironmentSpec, config: FittedValueConfig) -> nets.PolicyValue:
    """Tanh layers for the policy and others for the value, whose parameters are apart."""
    return nets.independent_policy_value(environment_spec, config.hidden_sizes, config.initial_std)


def value_loss(networks: nets.PolicyValue, params: nets.PolicyCritic) -> RowsLoss:
    """0.5 (v - target)^2 by the parameters of the value, which share nothing with the policy's in `params`."""

    def loss(critic: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        _, value = networks.apply(params._replace(critic=critic), rows.observation)
        mean = losses.masked_mean(0.5 * jnp.square(value - rows.target), rows.mask)
        return mean, {"value_loss": mean}

    return loss


@dataclasses.dataclass(frozen=True)
class NaturalConfig(FittedValueConfig):
    """Settings of agents whose policy follows the natural gradient: NPG and TRPO.

    Attributes:
        cg_iterations: of conjugate gradients, each a product with the Fisher matrix.
        damping: times the identity is added to the Fisher matrix.
    """

    segment_length: Count = 64
    cg_iterations: Count = 10
    damping: Positive = 0.1


Divergence = Callable[[Nest], Array]
"""``params -> KL [] of the distribution at these parameters from a fixed one``; least, 0, where they agree."""


def fisher_vector_product(divergence: Divergence, params: Nest, vector: Nest) -> Nest:
    """F v, a nest like `params`, with F the Fisher matrix at `params`.

    F is the Hessian of the KL from the distribution at `params` (Schulman et al. 2015, appendix C), and its product
    with a vector, a nest like `params`, the derivative of the KL's gradient along it (Pearlmutter 1994).
    """
    return jax.jvp(jax.grad(divergence), (params,), (vector,))[1]


class NaturalGradient(NamedTuple):
    """What `natural_gradient` finds.

    Attributes:
        direction: x with (F + damping I) x = gradient, a nest like the parameters.
        curvature: x (F + damping I) x, float32 ``[]``: a step of c x changes the KL by about c^2 / 2 times that.
        residual: what conjugate gradients left of the gradient, |gradient - (F + damping I) x| / |gradient|, ``[]``.
    """

    direction: Nest
    curvature: Array
    residual: Array


def natural_gradient(
    divergence: Divergence, params: Nest, gradient: Nest, num_iterations: int, damping: float
) -> NaturalGradient:
    """The direction that climbs most for its change of the distribution (Kakade 2001), by conjugate gradients.

    Args:
        divergence: from the distribution at `params`.
        params: of the policy.
        gradient: of what is to be climbed, at `params`.
        num_iterations: of conjugate gradients (Hestenes & Stiefel 1952), which end early at a residual of 1e-5.
        damping: times the identity is added to the Fisher matrix, which need not have full rank; > 0.
    """
    b, to_nest = ravel_pytree(gradient)

    def product(v: Array) -> Array:
        return ravel_pytree(fisher_vector_product(divergence, params, to_nest(v)))[0] + damping * v

    x, _ = cg(product, b, maxiter=num_iterations)
    image, norm = product(x), jnp.linalg.norm(b)
    residual = jnp.linalg.norm(b - image) / jnp.where(norm > 0, norm, 1.0)
    return NaturalGradient(to_nest(x), jnp.vdot(x, image), residual)


def divergence_from(networks: nets.PolicyValue, params: nets.PolicyCritic, rows: Rows) -> Divergence:
    """From the policy of `params`, in mean over the rows, where there is an action."""
    old, _ = networks.apply(params, rows.observation)

    def divergence(policy: Any) -> jax.Array:
        new, _ = networks.apply(params._replace(policy=policy), rows.observation)
        return losses.masked_mean(old.kl(new), rows.mask)

    return divergence


PolicyStep = Callable[[nets.PolicyCritic, Rows], tuple[Any, dict[str, jax.Array]]]
"""``(params, rows) -> (policy parameters, metrics)``: a step that needs no optimiser."""


def step_and_fit(networks: nets.PolicyValue, config: NaturalConfig, step: PolicyStep) -> Update:
    """For each batch one step of the policy on all of its rows, then a fit of the value, which leaves that as it is."""
    optimizer = adam(1.0, config.max_grad_norm)

    def improve(params: Any, opt_state: Any, rows: Rows, progress: Progress) -> tuple[Any, Any, dict[str, jax.Array]]:
        policy, metrics = step(params, rows)
        (value, opt_state), fitted = run_epochs(
            gradient_step(value_loss(networks, params), optimizer, config.learning_rate),
            (params.critic, opt_state),
            rows,
            progress.key,
            num_epochs=config.num_value_epochs,
            num_minibatches=config.num_minibatches,
        )
        return nets.PolicyCritic(policy, value), opt_state, {**metrics, "value_loss": fitted["value_loss"]}

    return learn_from_segments(networks, config, lambda params: optimizer.init(params.critic), improve)
