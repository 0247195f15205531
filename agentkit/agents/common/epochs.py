"""Epochs of minibatches over the rows of a batch, all inside one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp

from agentkit.learning.sharing import split_rows
from agentkit.types import Array, Params

if TYPE_CHECKING:
    import optax

Learned = TypeVar("Learned")
Data = TypeVar("Data")

Fitted = tuple[Params, "optax.OptState"]
"""Parameters, and the state of their optimiser."""

Step = Callable[[Learned, Data], tuple[Learned, dict[str, Array]]]
"""``(learned, data) -> (learned, metrics)``."""


def run_epochs(
    step: Callable[[Learned, Data, jax.Array], tuple[Learned, dict[str, Array]]],
    learned: Learned,
    data: Data,
    key: jax.Array,
    *,
    num_epochs: int,
    num_minibatches: int,
    mask: Array | None = None,
) -> tuple[Learned, dict[str, Array]]:
    """Takes a step on every minibatch of every epoch, each epoch in an order of its own.

    Args:
        step: ``(learned, minibatch, key) -> (learned, metrics)``, leaves ``[size / num_minibatches, ...]``.
        learned: what the steps change, e.g. parameters and the optimiser's state.
        data: leaves ``[size, ...]``; `num_minibatches` must divide the size.
        key: PRNG key ``uint32[2]``.
        num_epochs: passes over the data.
        num_minibatches: steps per pass.
        mask: see `minibatch_orders`.

    Returns:
        The newest of `learned`, and the metrics' means over the minibatches.
    """
    orders = minibatch_orders(key, jax.tree.leaves(data)[0].shape[0], num_epochs, num_minibatches, mask)
    keys = step_keys(key, num_epochs, num_minibatches)
    learned, metrics = jax.lax.scan(
        lambda learned, turn: step(learned, rows_at(data, turn[0]), turn[1]),
        learned,
        jax.tree.map(lambda x: x.reshape(num_epochs * num_minibatches, -1), (orders, keys)),
    )
    return learned, jax.tree.map(jnp.mean, metrics)


def step_keys(key: Array, num_epochs: int, num_minibatches: int) -> Array:
    """Returns a key for each step, uint32 ``[num_epochs, num_minibatches, 2]``; none is one of `minibatch_orders`."""
    return jax.random.split(jax.random.fold_in(key, 2**32 - 1), (num_epochs, num_minibatches))


def rows_at(data: Data, indices: Array) -> Data:
    """Returns the rows of these indices, a minibatch, which several devices share."""
    rows: Data = jax.tree.map(lambda x: jnp.asarray(x)[indices], data)  # Traced indices cannot pick from numpy's.
    return split_rows(rows)


Stoppable = tuple[Learned, Array]
"""``(learned, stopped)``: what the steps change, and whether they are over, bool ``[]``."""


def until(
    stop: Callable[[dict[str, Array]], Array] | None, step: Step[Learned, Data]
) -> Callable[[Stoppable[Learned], Data], tuple[Stoppable[Learned], dict[str, Array]]]:
    """Makes a step that ends itself: where `stop` is true, neither that step is taken nor any after it.

    Args:
        stop: ``metrics -> bool []``; None for never.
        step: ``(learned, data) -> (learned, metrics)``.

    Returns:
        ``((learned, stopped), data) -> ((learned, stopped), metrics)``, for a scan; see `means_until`.
    """

    def look(learned: Learned, data: Data) -> tuple[Stoppable[Learned], dict[str, Array]]:
        stepped, metrics = step(learned, data)
        metrics = {**metrics, "looked": jnp.asarray(1.0)}
        if stop is None:
            return (stepped, jnp.asarray(False)), metrics
        stopped = stop(metrics)
        return (jax.tree.map(lambda new, old: jnp.where(stopped, old, new), stepped, learned), stopped), metrics

    def skip(learned: Learned, data: Data) -> tuple[Stoppable[Learned], dict[str, Array]]:
        _, metrics = jax.eval_shape(look, learned, data)
        return (learned, jnp.asarray(True)), jax.tree.map(jnp.zeros_like, metrics)

    def step_until(carry: Stoppable[Learned], data: Data) -> tuple[Stoppable[Learned], dict[str, Array]]:
        learned, stopped = carry
        return look(learned, data) if stop is None else jax.lax.cond(stopped, skip, look, learned, data)

    return step_until


def means_until(metrics: dict[str, Array]) -> dict[str, Array]:
    """Returns the metrics' means over the steps of `until` that were looked at, ``[]``.

    Args:
        metrics: ``[num_epochs, num_minibatches]``, each.

    Returns:
        The means, and ``epochs``: the number of passes that were made.
    """
    num_minibatches = metrics["looked"].shape[1]
    looked = jnp.sum(metrics["looked"])
    means = {name: jnp.sum(x) / looked for name, x in metrics.items() if name != "looked"}
    return {**means, "epochs": looked / num_minibatches}


_LARGEST_SORTED = 2**16


def minibatch_orders(key: Array, size: int, num_epochs: int, num_minibatches: int, mask: Array | None = None) -> Array:
    """Draws an order of ``0 ... size - 1`` for each epoch, ``[num_epochs, num_minibatches, size / num_minibatches]``.

    Sorts words that are an index below random bits: a seventh of the time of `jax.random.permutation`, which
    was a tenth of an update. At least 15 bits are random, and indices whose bits are equal stay in order. Of larger
    data the bits are sorted, and take the indices along.

    Args:
        key: PRNG key ``uint32[2]``.
        size: number of rows.
        num_epochs: orders drawn.
        num_minibatches: divides `size`.
        mask: 1 for rows that count, 0 for padding and the like, ``[size]``: each minibatch has as many of them as any
            other, or one less; where there are more minibatches than such rows, some have none. None, or ``[size, T]``
            of whole segments, deals them out as they come.
    """
    absent = jnp.zeros(size, bool) if mask is None or mask.ndim > 1 else mask == 0
    if size > _LARGEST_SORTED:
        bits = jax.random.bits(key, (num_epochs, size)) >> 1 | (absent.astype(jnp.uint32) << 31)[None]
        indices = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), bits.shape)
        orders = jax.lax.sort((bits, indices), dimension=1, num_keys=1)[1]
    else:
        num_bits = (size - 1).bit_length()
        bits = jax.random.bits(key, (num_epochs, size)) >> (num_bits + 1) << num_bits
        words = bits | (absent.astype(jnp.uint32) << 31 | jnp.arange(size, dtype=jnp.uint32))[None]
        orders = (jnp.sort(words, axis=1) & ((1 << num_bits) - 1)).astype(jnp.int32)
    return jnp.swapaxes(orders.reshape(num_epochs, -1, num_minibatches), 1, 2)  # Dealt out like cards.
