"""Natural gradients of a policy, without its Fisher matrix ever being written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from agentkit.types import Array, Nest

Divergence = Callable[[Nest], Array]
"""``params -> KL [] of the distribution at these parameters from a fixed one``; least, 0, where they agree."""


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


def conjugate_gradient(
    product: Callable[[Array], Array], b: Array, num_iterations: int, tolerance: float = 1e-5
) -> tuple[Array, Array]:
    """Solves A x = b for a symmetric positive definite A (Hestenes & Stiefel 1952).

    Args:
        product: ``v [N] -> A v [N]``.
        b: ``[N]``.
        num_iterations: products at most; N of them solve it but for rounding.
        tolerance: it ends where |b - A x| is at most this share of |b|.

    Returns:
        x ``[N]``, and |b - A x| / |b| ``[]`` as the iteration knows it; 0 for b = 0.
    """
    squared_b = jnp.vdot(b, b)
    limit = tolerance**2 * squared_b

    def unsolved(state: tuple[Array, ...]) -> Array:
        number, *_, squared = state
        return (number < num_iterations) & (squared > limit)

    def iterate(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, x, residual, direction, squared = state
        image = product(direction)
        length = squared / jnp.vdot(direction, image)
        residual = residual - length * image
        squared_t = jnp.vdot(residual, residual)
        return number + 1, x + length * direction, residual, residual + squared_t / squared * direction, squared_t

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(b), b, b, squared_b)
    _, x, _, _, squared = jax.lax.while_loop(unsolved, iterate, start)
    return x, jnp.sqrt(squared / jnp.where(squared_b > 0, squared_b, 1.0))


def fisher_vector_product(divergence: Divergence, params: Nest, vector: Nest) -> Nest:
    """F v, a nest like `params`, with F the Fisher matrix at `params`.

    F is the Hessian of the KL from the distribution at `params` (Schulman et al. 2015, appendix C), and its product
    with a vector the derivative of the KL's gradient along it (Pearlmutter 1994).

    Args:
        divergence: from the distribution at `params`.
        params: where the Fisher matrix is taken.
        vector: a nest like `params`.
    """
    return jax.jvp(jax.grad(divergence), (params,), (vector,))[1]


def natural_gradient(
    divergence: Divergence, params: Nest, gradient: Nest, num_iterations: int, damping: float
) -> NaturalGradient:
    """The direction that climbs most for its change of the distribution (Kakade 2001), by conjugate gradients.

    Args:
        divergence: from the distribution at `params`.
        params: of the policy.
        gradient: of what is to be climbed, at `params`.
        num_iterations: of conjugate gradients.
        damping: times the identity is added to the Fisher matrix, which need not have full rank; > 0.
    """
    b, to_nest = ravel_pytree(gradient)

    def product(v: Array) -> Array:
        return ravel_pytree(fisher_vector_product(divergence, params, to_nest(v)))[0] + damping * v

    x, residual = conjugate_gradient(product, b, num_iterations)
    return NaturalGradient(to_nest(x), jnp.vdot(x, product(x)), residual)
