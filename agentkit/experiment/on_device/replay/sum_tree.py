"""A sum tree in the device's memory: weights, of which many are drawn and changed at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.types import Array

FAN_OUT = 32

NOWHERE = 2**31 - 1
"""A place that no tree and no ring has, and that stays so when it is divided by `FAN_OUT`: nothing is written there."""

Tree = tuple[Array, ...]
"""Levels, the weights first: a node of each but the first is the sum of `FAN_OUT` of the one before, float32."""


def make_tree(capacity: int) -> Tree:
    """Returns weights of 0, with places from 0 to `capacity`."""
    lengths = [-(-capacity // FAN_OUT) * FAN_OUT]
    while lengths[-1] > FAN_OUT:
        lengths.append(-(-(lengths[-1] // FAN_OUT) // FAN_OUT) * FAN_OUT)
    return tuple(jnp.zeros(length, jnp.float32) for length in lengths)


def least_capacity(capacity: int) -> int:
    """Returns the least capacity whose tree has as many levels, and so is drawn from with the same keys."""
    least = 1
    while least * FAN_OUT < capacity:
        least *= FAN_OUT
    return min(least + 1, capacity)


def set_weights(tree: Tree, places: Array, weights: Array) -> Tree:
    """Returns the tree with other weights at some places.

    Args:
        tree: see above.
        places: int32 ``[M]``, some of which may be `NOWHERE`; of one that is given twice, either weight counts.
        weights: float32 ``[M]``, at least 0.
    """
    levels = [tree[0].at[places].set(weights, mode="drop")]
    for level in tree[1:]:
        places = places // FAN_OUT
        # Made anew from its children and not by differences, so that no rounding error builds up.
        sums = jnp.sum(levels[-1].reshape(-1, FAN_OUT).at[places].get(mode="clip"), axis=1)
        levels.append(level.at[places].set(sums, mode="drop"))
    return tuple(levels)


def draw_places(tree: Tree, key: Array, count: int) -> tuple[Array, Array]:
    """Draws places in proportion to their weights, with replacement; some weight must be above 0.

    Each level has a random number of its own: one of float32 for all would not reach each of a million places alike.

    Args:
        tree: see above.
        key: PRNG key ``uint32[2]``.
        count: B.

    Returns:
        The places, int32 ``[B]``, and the chance of each, float32 ``[B]``.
    """
    node = jnp.zeros(count, jnp.int32)
    for level, own_key in zip(reversed(tree), jax.random.split(key, len(tree)), strict=True):
        weights = level.reshape(-1, FAN_OUT)[node]  # [B, FAN_OUT]
        sums, there = jnp.cumsum(weights, axis=1), weights > 0
        hit = there & (sums > jax.random.uniform(own_key, (count, 1)) * sums[:, -1:])
        # Rounding may leave no hit: then the number was at the end, and it falls on the last weight above 0.
        last = FAN_OUT - 1 - jnp.argmax(there[:, ::-1], axis=1)
        child = jnp.where(jnp.any(hit, axis=1), jnp.argmax(hit, axis=1), last)
        node = node * FAN_OUT + child.astype(jnp.int32)
    return node, tree[0][node] / jnp.sum(tree[-1])
