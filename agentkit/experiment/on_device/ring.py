"""A replay table in the device's memory: the newest items, drawn uniformly."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit.types import Array, Nest, ReplaySample, SampleInfo


class Ring(NamedTuple):
    """Holds the newest C items; a new one takes the place of the oldest, as in a table whose remover is Fifo.

    Attributes:
        items: leaves ``[C, ...]``.
        times_drawn: of each item, int32 ``[C]``.
        num_inserted: since the start, int32 ``[]``.
    """

    items: Nest
    times_drawn: Array
    num_inserted: Array

    @property
    def size(self) -> Array:
        """Returns how many items there are, int32 ``[]``."""
        return jnp.minimum(self.num_inserted, self.times_drawn.shape[0])


def make_ring(item: Nest, capacity: int) -> Ring:
    """Returns an empty ring.

    Args:
        item: arrays or their shapes and dtypes, of one item.
        capacity: C.
    """
    items = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), item)
    return Ring(items, jnp.zeros(capacity, jnp.int32), jnp.int32(0))


def insert(ring: Ring, items: Nest, mask: Array) -> Ring:
    """Returns the ring with more items in it, in their order.

    Args:
        ring: of C items.
        items: leaves ``[M, ...]``, of which C at most are inserted.
        mask: which of them are, bool ``[M]``.
    """
    capacity = ring.times_drawn.shape[0]
    places = (ring.num_inserted + jnp.cumsum(mask, dtype=jnp.int32) - 1) % capacity
    places = jnp.where(mask, places, capacity)  # Which is none, and is left out.
    new = jax.tree.map(lambda column, x: column.at[places].set(x, mode="drop"), ring.items, items)
    times = ring.times_drawn.at[places].set(0, mode="drop")
    return Ring(new, times, ring.num_inserted + jnp.sum(mask, dtype=jnp.int32))


def draw(ring: Ring, key: Array, batch_size: int) -> tuple[ReplaySample[Nest], Array]:
    """Draws items, each with the same chance, with replacement.

    Args:
        ring: of an item or more.
        key: PRNG key ``uint32[2]``.
        batch_size: B.

    Returns:
        The batch, and the ring's new `times_drawn`: all else in it stays, and needs not be handed on.
    """
    size = ring.size
    places = jax.random.randint(key, (batch_size,), 0, size)
    times = ring.times_drawn.at[places].add(1)
    info = SampleInfo(
        jnp.full(batch_size, 1.0 / size, jnp.float32),
        jnp.full(batch_size, size, jnp.int32),
        jnp.ones(batch_size, jnp.float32),
        times[places],
    )
    return ReplaySample(info, jax.tree.map(lambda column: column[places], ring.items)), times
