"""Running mean and variance as a pure pair, for normalising observations or returns, in updates and in acting."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.types import Array, Nest


class RunningStatistics(NamedTuple):
    """Holds Welford's sums over everything seen so far.

    Attributes:
        count: float32 ``[]``.
        mean: ``[...]``.
        squares: sum of squared deviations from the mean ``[...]``.
    """

    count: Array
    mean: Array
    squares: Array


def init_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Returns the statistics of nothing."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def update_statistics(statistics: RunningStatistics, batch: Array, mask: Array | None = None) -> RunningStatistics:
    """Takes in a batch ``[B, ...]`` (Chan et al. 1983, parallel variance), without elements that are not finite.

    A single NaN would stay for ever; that there was one is seen in the loss.

    Args:
        statistics: of values ``[...]``.
        batch: ``[B, ...]``.
        mask: 0 for the elements of the batch to leave out, else 1, ``[B]``; None takes all in.
    """
    weight = jnp.ones(batch.shape[0]) if mask is None else mask
    finite = jnp.all(jnp.isfinite(batch.reshape(batch.shape[0], -1)), axis=1)  # [B]
    weight = jnp.where(finite, weight, 0.0)
    size = jnp.sum(weight)
    weight = jnp.broadcast_to(weight.reshape(-1, *[1] * (batch.ndim - 1)), batch.shape)
    batch = jnp.where(weight > 0, batch, 0.0)  # 0 * nan is nan.
    count = statistics.count + size
    batch_mean = jnp.sum(batch * weight, axis=0) / jnp.maximum(size, 1.0)
    delta = batch_mean - statistics.mean
    share = size / jnp.maximum(count, 1.0)
    squares = (
        statistics.squares
        + jnp.sum(jnp.square(batch - batch_mean[None]) * weight, axis=0)
        + jnp.square(delta) * (statistics.count * share)
    )
    return RunningStatistics(count, statistics.mean + delta * share, squares)


def normalize(statistics: RunningStatistics, value: Array, epsilon: float = 1e-6) -> jax.Array:
    """Returns ``(value - mean) / sqrt(variance + epsilon)``, at an unchanged scale before two values were seen.

    Args:
        statistics: of values ``[...]``.
        value: one value ``[...]``, or any batch of them ``[B, ...]``, ``[T, B, ...]``.
        epsilon: added to the variance.
    """
    mean = jnp.broadcast_to(statistics.mean, value.shape)
    return (value - mean) / jnp.broadcast_to(std(statistics, epsilon), value.shape)


def std(statistics: RunningStatistics, epsilon: float = 1e-6) -> jax.Array:
    """Returns ``sqrt(variance + epsilon)``, ``[...]``; 1 before two values were seen."""
    variance = jnp.where(statistics.count > 1, statistics.squares / jnp.maximum(statistics.count, 1), 1.0)
    return jnp.sqrt(variance + epsilon)


def root_mean_square(statistics: RunningStatistics, epsilon: float = 1e-6) -> jax.Array:
    """Returns the root of the mean square of all that was taken in, ``[...]``; 1 of nothing.

    Args:
        statistics: of values ``[...]``.
        epsilon: added to the mean square.
    """
    mean_square = jnp.square(statistics.mean) + statistics.squares / jnp.maximum(statistics.count, 1.0)
    return jnp.sqrt(jnp.where(statistics.count > 0, mean_square, 1.0) + epsilon)


NestStatistics = tuple[RunningStatistics | tuple[()], ...]
"""The statistics of each leaf of a nest, in flattening order; ``()`` of one that stays as it is."""


def init_nest_statistics(spec: Nest) -> NestStatistics:
    """Returns empty statistics for nests like `spec`: of leaves of floats that are no image.

    Images, choices and all other integers stay as they are: networks scale these by their specs (`encode_inputs`).
    """
    return tuple(init_statistics(tuple(leaf.shape)) if _is_vector(leaf) else () for leaf in jax.tree.leaves(spec))


def update_nest_statistics(statistics: NestStatistics, batch: Nest, mask: Array | None = None) -> NestStatistics:
    """Takes in a batch, leaves ``[B, ...]``; returns () if there are no statistics.

    Args:
        statistics: of `init_nest_statistics`.
        batch: leaves ``[B, ...]``.
        mask: as for `update_statistics`.
    """
    if not statistics:
        return ()
    leaves = jax.tree.leaves(batch)
    return tuple(update_statistics(s, leaf, mask) if s else () for s, leaf in zip(statistics, leaves, strict=True))


def normalize_nest(statistics: NestStatistics, nest: Nest, limit: float, epsilon: float = 1e-6) -> Nest:
    """Normalises the leaves of a nest, or of a batch of nests, that have statistics.

    Returns the nest as it is if there are no statistics.

    Args:
        statistics: of `init_nest_statistics`.
        nest: leaves ``[...]``, ``[B, ...]`` or ``[T, B, ...]``.
        limit: normalised values are clipped to [-limit, limit].
        epsilon: as for `normalize`.
    """
    if not statistics:
        return nest
    leaves, structure = jax.tree.flatten(nest)
    normalized = [
        jnp.clip(normalize(s, leaf, epsilon), -limit, limit) if s else leaf
        for s, leaf in zip(statistics, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, normalized)


def _is_vector(spec: specs.Array) -> bool:
    return jnp.issubdtype(spec.dtype, jnp.floating) and not specs.is_image(tuple(spec.shape))
