"""A Gaussian squashed by tanh, for bounded continuous actions, in plain jax.numpy.

Kept apart from rlax and distrax, which are slow to import, since actors sample from it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit.types import Array


class TanhNormal(NamedTuple):
    """Describes the distribution of tanh(x), x ~ Normal(mean, exp(log_std)), per action dimension.

    Attributes:
        mean: before tanh, ``[..., A]``.
        log_std: before tanh, ``[..., A]``.
    """

    mean: Array
    log_std: Array


def sample_and_log_prob(distribution: TanhNormal, key: jax.Array) -> tuple[Array, Array]:
    """Draws a reparameterised sample ``[..., A]`` in (-1, 1), and returns its log-density ``[...]``, too.

    The density is Haarnoja et al. (2018), appendix C, eq. 21, with
    log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), which does not overflow.
    """
    noise = jax.random.normal(key, distribution.mean.shape)
    x = distribution.mean + jnp.exp(distribution.log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - distribution.log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_slope = 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))
    return jnp.tanh(x), jnp.sum(log_normal - log_slope, axis=-1)


def sample(distribution: TanhNormal, key: jax.Array) -> jax.Array:
    """Draws a sample ``[..., A]`` in (-1, 1)."""
    noise = jax.random.normal(key, distribution.mean.shape)
    return jnp.tanh(distribution.mean + jnp.exp(distribution.log_std) * noise)


def mode(distribution: TanhNormal) -> jax.Array:
    """Returns the tanh of the mean ``[..., A]``: the action to be judged by."""
    return jnp.tanh(distribution.mean)
