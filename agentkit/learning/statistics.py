"""Running mean and variance as a pure pair, for normalising observations or returns in an update."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from agentkit.types import Array


class RunningStatistics(NamedTuple):
    """Welford's sums over everything seen so far.

    Attributes:
        count: float32 ``[]``.
        mean: ``[...]``.
        squares: sum of squared deviations from the mean ``[...]``.
    """

    count: Array
    mean: Array
    squares: Array


def init_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Nothing seen yet."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def update_statistics(statistics: RunningStatistics, batch: Array) -> RunningStatistics:
    """Takes in a batch ``[B, ...]`` (Chan et al. 1983, parallel variance)."""
    size = batch.shape[0]
    count = statistics.count + size
    batch_mean = jnp.mean(batch, axis=0)
    delta = batch_mean - statistics.mean
    mean = statistics.mean + delta * (size / count)
    squares = (
        statistics.squares
        + jnp.sum(jnp.square(batch - batch_mean[None]), axis=0)
        + jnp.square(delta) * (statistics.count * size / count)
    )
    return RunningStatistics(count, mean, squares)


def normalize(statistics: RunningStatistics, value: Array, epsilon: float = 1e-6) -> Array:
    """``(value - mean) / sqrt(variance + epsilon)``; unchanged scale before two values were seen.

    Args:
        statistics: of values ``[...]``.
        value: one value ``[...]``, or any batch of them ``[B, ...]``, ``[T, B, ...]``.
        epsilon: added to the variance.
    """
    variance = jnp.where(statistics.count > 1, statistics.squares / jnp.maximum(statistics.count, 1), 1.0)
    mean = jnp.broadcast_to(statistics.mean, value.shape)
    return (value - mean) / jnp.broadcast_to(jnp.sqrt(variance + epsilon), value.shape)
