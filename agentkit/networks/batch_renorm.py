"""Critics with batch renormalisation (Ioffe 2017, 1702.03275), for learning without target networks."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.networks.action_mask import refuse_action_mask
from agentkit.networks.mlp import orthogonal_mlp
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest

EPSILON = 1e-3
MAX_RATIO, MAX_SHIFT = 3.0, 5.0
"""Largest r and d (Ioffe 2017, section 4.1)."""


def batch_renorm(x: Array, training: bool, momentum: float, warmup: int) -> jax.Array:
    """Normalises ``[B, F]`` and scales it by learned numbers; a Haiku function whose state is running statistics.

    In training by the batch's own mean and deviation, corrected towards the running ones, within bounds, after the
    first `warmup` batches (algorithm 1); else by the running ones.

    Args:
        x: ``[B, F]``.
        training: whether the batch's statistics are used, and taken into the running ones.
        momentum: share of a running statistic that a batch leaves as it is.
        warmup: batches that are normalised by themselves alone.
    """
    size = (x.shape[-1],)
    scale = hk.get_parameter("scale", size, init=jnp.ones)
    offset = hk.get_parameter("offset", size, init=jnp.zeros)
    running_mean = hk.get_state("mean", size, init=jnp.zeros)
    running_variance = hk.get_state("variance", size, init=jnp.ones)
    num_batches = hk.get_state("num_batches", (), jnp.int32, init=jnp.zeros)
    running_std = jnp.sqrt(running_variance + EPSILON)
    if not training:
        normalized = (x - running_mean[None]) / running_std[None]
        return normalized * scale[None] + offset[None]
    mean, variance = jnp.mean(x, axis=0), jnp.var(x, axis=0)
    std = jnp.sqrt(variance + EPSILON)
    is_warm = num_batches >= warmup
    ratio = jnp.where(is_warm, jnp.clip(std / running_std, 1 / MAX_RATIO, MAX_RATIO), 1.0)  # r
    shift = jnp.where(is_warm, jnp.clip((mean - running_mean) / running_std, -MAX_SHIFT, MAX_SHIFT), 0.0)  # d
    ratio, shift = jax.lax.stop_gradient((ratio, shift))
    normalized = (x - mean[None]) / std[None] * ratio[None] + shift[None]
    dtype = running_mean.dtype
    hk.set_state("mean", momentum * running_mean + (1 - momentum) * jax.lax.stop_gradient(mean).astype(dtype))
    hk.set_state(
        "variance", momentum * running_variance + (1 - momentum) * jax.lax.stop_gradient(variance).astype(dtype)
    )
    hk.set_state("num_batches", num_batches + 1)
    return normalized * scale[None] + offset[None]


def renormalized_critic(
    observation: Nest,
    action: Array,
    hidden_sizes: Sequence[int],
    training: bool,
    momentum: float,
    warmup: int,
    torso: Torso = torso,
) -> jax.Array:
    """Returns a critic's values ``[B]``: `batch_renorm` of its inputs, and after each hidden layer's ReLU.

    Bhatt et al. 2024 (1902.05605). For the arguments see `batch_renorm`; `torso` makes features of observations.
    """

    def renorm(x: Array) -> jax.Array:
        return hk.to_module(batch_renorm)("batch_renorm")(x, training, momentum, warmup)

    refuse_action_mask(observation)
    features = renorm(jnp.concatenate([torso(observation), action], axis=-1))
    return orthogonal_mlp(features, hidden_sizes, 1, activation=lambda x: renorm(jax.nn.relu(x)))[:, 0]
