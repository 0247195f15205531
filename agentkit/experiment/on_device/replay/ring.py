"""A replay table in the device's memory: the newest items, drawn uniformly or by priority."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit.experiment.on_device.replay.sum_tree import NOWHERE, Tree, draw_places, make_tree, set_weights
from agentkit.learning.finite import are_priorities
from agentkit.replay.base import FIRST_PRIORITY
from agentkit.types import Array, Nest, ReplaySample, SampleInfo

_LARGEST_WEIGHT = 1e27
"""Of which 2**31 can be added in single precision."""


class Marks(NamedTuple):
    """Holds what a draw or an update changes; items are none of it, so that they are not copied.

    Attributes:
        times_drawn: of each item, int32 ``[C]``.
        priorities: of each item, float32 ``[C]``; ``()`` where items are drawn uniformly.
        tree: their powers; likewise.
        largest: the largest priority so far, float32 ``[]``, which a new item gets; likewise.
    """

    times_drawn: Array
    priorities: Array = ()
    tree: Tree = ()
    largest: Array = ()


class Ring(NamedTuple):
    """Holds the newest C items; a new one takes the place of the oldest, as in a table whose remover is Fifo.

    Attributes:
        items: leaves ``[C, ...]``.
        marks: what a draw or an update changes.
        num_inserted: since the start, int32 ``[]``.
    """

    items: Nest
    marks: Marks
    num_inserted: Array

    @property
    def capacity(self) -> int:
        """Returns C; also of several members' rings."""
        return int(self.marks.times_drawn.shape[-1])

    @property
    def size(self) -> Array:
        """Returns how many items there are, int32 ``[]``."""
        return jnp.minimum(self.num_inserted, self.capacity)


def make_ring(item: Nest, capacity: int, prioritized: bool = False) -> Ring:
    """Returns an empty ring.

    Args:
        item: arrays or their shapes and dtypes, of one item.
        capacity: C.
        prioritized: whether items are to be drawn by priority.
    """
    items = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), item)
    marks = Marks(jnp.zeros(capacity, jnp.int32))
    if prioritized:
        priorities = jnp.zeros(capacity, jnp.float32)
        marks = Marks(marks.times_drawn, priorities, make_tree(capacity), jnp.float32(FIRST_PRIORITY))
    return Ring(items, marks, jnp.int32(0))


def insert(ring: Ring, items: Nest, mask: Array, exponent: float = 0.0) -> Ring:
    """Returns the ring with more items in it, in their order, with the largest priority so far.

    Args:
        ring: of C items.
        items: leaves ``[M, ...]``, of which C at most are inserted.
        mask: which of them are, bool ``[M]``.
        exponent: of priorities.
    """
    places = (ring.num_inserted + jnp.cumsum(mask, dtype=jnp.int32) - 1) % ring.capacity
    places = jnp.where(mask, places, NOWHERE)
    new = jax.tree.map(lambda column, x: column.at[places].set(x, mode="drop"), ring.items, items)
    marks = ring.marks._replace(times_drawn=ring.marks.times_drawn.at[places].set(0, mode="drop"))
    if isinstance(marks.priorities, jax.Array):
        marks = set_priorities(marks, places, jnp.full(places.shape, marks.largest), exponent)
    return Ring(new, marks, ring.num_inserted + jnp.sum(mask, dtype=jnp.int32))


def draw(
    ring: Ring, key: Array, batch_size: int, counts: Array | bool = True
) -> tuple[ReplaySample[Nest], Array, Marks]:
    """Draws items with replacement, uniformly or in proportion to the powers of their priorities.

    Where all of these are 0, it draws uniformly, too, as the host's table does.

    Args:
        ring: of an item or more.
        key: PRNG key ``uint32[2]``.
        batch_size: B.
        counts: whether it counts as a draw, bool ``[]``; else the marks stay as they are.

    Returns:
        The batch, the places of its items ``[B]``, `sum_tree.NOWHERE` unless it counts, and the ring's new marks.
    """
    marks, size = ring.marks, ring.size
    places = jax.random.randint(key, (batch_size,), 0, size)
    probability = jnp.full(batch_size, 1.0 / size, jnp.float32)
    priorities = jnp.ones(batch_size, jnp.float32)
    if isinstance(marks.priorities, jax.Array):
        has_weights, drawn = jnp.sum(marks.tree[-1]) > 0, draw_places(marks.tree, key, batch_size)
        places, probability = (jnp.where(has_weights, *each) for each in zip(drawn, (places, probability), strict=True))
        priorities = marks.priorities[places]
    marked = jnp.where(counts, places, NOWHERE)
    marks = marks._replace(times_drawn=marks.times_drawn.at[marked].add(1, mode="drop"))
    table_size = jnp.full(batch_size, size, jnp.int32)
    info = SampleInfo(probability, table_size, priorities, marks.times_drawn[places])
    return ReplaySample(info, jax.tree.map(lambda column: column[places], ring.items)), marked, marks


def set_priorities(marks: Marks, places: Array, priorities: Array, exponent: float) -> Marks:
    """Returns the marks with new priorities.

    Those that are below 0, NaN or infinite change nothing: `finite.add_to_tally` tells of them.

    Args:
        marks: of a ring that is drawn from by priority.
        places: int32 ``[M]``, some of which may be `sum_tree.NOWHERE`, whose priorities count for nothing; of one that
            is given twice, either priority counts.
        priorities: float32 ``[M]``.
        exponent: alpha: a weight is its priority to the power of that, and 0 for a priority of 0.
    """
    counts = are_priorities(priorities) & (places != NOWHERE)
    places = jnp.where(counts, places, NOWHERE)
    priorities = jnp.where(counts, priorities, 0.0)
    stored = marks.priorities.at[places].set(priorities, mode="drop")
    # Read back: on a GPU, which of two counts is not defined, and another one might in the tree.
    kept = stored.at[places].get(mode="fill", fill_value=0.0)
    weights = jnp.where(kept > 0, jnp.minimum(kept**exponent, _LARGEST_WEIGHT), 0.0)
    tree = set_weights(marks.tree, places, weights)
    return Marks(marks.times_drawn, stored, tree, jnp.maximum(marks.largest, jnp.max(priorities)))
