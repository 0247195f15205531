"""Natural gradients by conjugate gradients on the Fisher matrix (Kakade 2001; Schulman et al. 2015, appendix C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from agentkit import losses
from agentkit import networks as nets
from agentkit.agents.common.advantages import Minibatch
from agentkit.types import Array, Nest, Params

MeanKL = Callable[[Nest], Array]
"""``params -> KL []`` of the distribution at these parameters from a fixed one; its minimum, 0, is where they agree."""


def fisher_vector_product(mean_kl: MeanKL, params: Nest, vector: Nest) -> Nest:
    """Returns F v, a nest like `params`, with F the Fisher matrix at `params`.

    F is the Hessian of the KL from the distribution at `params` (Schulman et al. 2015, appendix C), and its product
    with a vector, a nest like `params`, the derivative of the KL's gradient along it (Pearlmutter 1994).
    """
    return jax.jvp(jax.grad(mean_kl), (params,), (vector,))[1]


class NaturalGradient(NamedTuple):
    """Holds the result of `natural_gradient`.

    Attributes:
        direction: x with (F + damping I) x = gradient, a nest like the parameters.
        curvature: x (F + damping I) x, float32 ``[]``: a step of c x changes the KL by about c^2 / 2 times that.
        residual: |gradient - (F + damping I) x| / |gradient|, which conjugate gradients left, ``[]``.
    """

    direction: Nest
    curvature: Array
    residual: Array


def natural_gradient(
    mean_kl: MeanKL, params: Nest, gradient: Nest, num_iterations: int, damping: float
) -> NaturalGradient:
    """Finds the direction that climbs most for its change of the distribution (Kakade 2001).

    Args:
        mean_kl: KL from the distribution at `params`.
        params: of the policy.
        gradient: of the objective, at `params`.
        num_iterations: of conjugate gradients (Hestenes & Stiefel 1952), which end early at a residual of 1e-5.
        damping: times the identity is added to the Fisher matrix, which need not have full rank; > 0.
    """
    b, to_nest = ravel_pytree(gradient)

    def product(v: Array) -> Array:
        return ravel_pytree(fisher_vector_product(mean_kl, params, to_nest(v)))[0] + damping * v

    x, _ = cg(product, b, maxiter=num_iterations)
    image, norm = product(x), jnp.linalg.norm(b)
    residual = jnp.linalg.norm(b - image) / jnp.where(norm > 0, norm, 1.0)
    return NaturalGradient(to_nest(x), jnp.vdot(x, image), residual)


def mean_kl_from(networks: nets.PolicyValue, params: nets.PolicyCritic, rows: Minibatch) -> MeanKL:
    """Returns the KL from the policy of `params`, as a mean over the rows with an action."""
    old, _ = networks.apply(params, rows.observation)

    def mean_kl(policy: Params) -> jax.Array:
        new, _ = networks.apply(params._replace(policy=policy), rows.observation)
        return losses.masked_mean(old.kl(new), rows.mask)

    return mean_kl
