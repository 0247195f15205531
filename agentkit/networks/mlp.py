"""Feed-forward networks, as Haiku modules. Haiku appears in this folder and in `make_networks` only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.networks.action_mask import mask_illegal, refuse_action_mask
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest


def mlp(features: Array, hidden_sizes: Sequence[int], num_outputs: int) -> jax.Array:
    """Applies ReLU layers of `hidden_sizes` to ``[B, F]``, then a linear layer: ``[B, num_outputs]``."""
    for size in hidden_sizes:
        features = jax.nn.relu(hk.Linear(size)(features))
    return hk.Linear(num_outputs)(features)


def orthogonal_mlp(
    features: Array,
    hidden_sizes: Sequence[int],
    num_outputs: int,
    output_scale: float = 1.0,
    activation: Callable[[Array], Array] = jax.nn.relu,
) -> jax.Array:
    """Applies `mlp` with orthogonal weights (Saxe et al. 2014), scaled sqrt(2) for ReLU, `output_scale` at the end.

    A policy head begins with a small scale, so that its first actions do not depend on the observation
    (Andrychowicz et al. 2021, section 3.2).
    """
    for size in hidden_sizes:
        features = activation(hk.Linear(size, w_init=orthogonal(2.0**0.5))(features))
    return hk.Linear(num_outputs, w_init=orthogonal(output_scale))(features)


def tanh_action(observation: Nest, action_size: int, hidden_sizes: Sequence[int], torso: Torso = torso) -> jax.Array:
    """Returns a deterministic policy's actions ``[B, A]`` in [-1, 1]; they begin near 0."""
    refuse_action_mask(observation)
    return jnp.tanh(orthogonal_mlp(torso(observation), hidden_sizes, action_size, output_scale=0.01))


def critic(
    observation: Nest, action: Array, hidden_sizes: Sequence[int], num_outputs: int = 1, torso: Torso = torso
) -> jax.Array:
    """Returns a critic's outputs ``[B, num_outputs]`` for observations and actions ``[B, A]``."""
    refuse_action_mask(observation)
    features = jnp.concatenate([torso(observation), action], axis=-1)
    return orthogonal_mlp(features, hidden_sizes, num_outputs)


def orthogonal(scale: float) -> hk.initializers.Initializer:
    """Initialises weights ``[..., outputs]``, also of convolutions, as `scale` times an orthogonal matrix.

    It is JAX's, but for LAPACK: its threads took 5 s for 256 x 256 where other processes had the cores, 5 ms alone.
    """

    def init(shape: Sequence[int], dtype: Any) -> jax.Array:
        num_rows, num_columns = math.prod(shape[:-1]), shape[-1]
        sizes = max(num_rows, num_columns), min(num_rows, num_columns)
        rows = orthonormal_rows(jax.random.normal(hk.next_rng_key(), sizes, dtype).T)
        return scale * (rows.T if num_rows >= num_columns else rows).reshape(shape)

    return init


@jax.jit  # Compiled once for all layers of a shape.
def orthonormal_rows(matrix: Array) -> jax.Array:
    """Applies Gram-Schmidt to the rows of ``[N, M]``, N <= M, each twice (Giraud et al. 2005: twice is enough).

    It is the one such basis in which the i-th row leans towards the i-th of `matrix`: the transposed Q of a
    QR decomposition of the transposed `matrix`, where R has a positive diagonal.
    """

    def add(i: Array, basis: Array) -> jax.Array:
        row = matrix[i]
        for _ in range(2):
            row -= (basis @ row) @ basis
        return basis.at[i].set(row / jnp.linalg.norm(row))

    return jax.lax.fori_loop(0, matrix.shape[0], add, jnp.zeros_like(matrix))


def q_values(observation: Nest, num_actions: int, hidden_sizes: Sequence[int], torso: Torso = torso) -> jax.Array:
    """Returns action values ``[B, A]``."""
    return mask_illegal(mlp(torso(observation), hidden_sizes, num_actions), observation)


def duelling_q_values(
    observation: Nest, num_actions: int, hidden_sizes: Sequence[int], torso: Torso = torso
) -> jax.Array:
    """Returns action values ``[B, A]`` from separate value and advantage streams (Wang et al. 2016, eq. 9)."""
    features = torso(observation)
    value = mlp(features, hidden_sizes, 1)  # [B, 1]
    advantage = mlp(features, hidden_sizes, num_actions)  # [B, A]
    advantage = advantage - jnp.mean(advantage, axis=-1, keepdims=True)
    return mask_illegal(jnp.broadcast_to(value, advantage.shape) + advantage, observation)
