"""Formulas of critics of continuous actions in [-1, 1]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.types import Array


def smoothed_action(action: Array, key: jax.Array, stddev: float, max_noise: float) -> jax.Array:
    """Adds clipped Gaussian noise to target actions ``[..., A]`` (Fujimoto et al. 2018, 1802.09477, eq. 14).

    Args:
        action: the target policy's, in [-1, 1].
        key: PRNG key.
        stddev: sigma of the noise before it is clipped, >= 0.
        max_noise: c, the largest absolute noise, >= 0.
    """
    noise = stddev * jax.random.normal(key, action.shape)
    return jnp.clip(action + jnp.clip(noise, -max_noise, max_noise), -1.0, 1.0)
