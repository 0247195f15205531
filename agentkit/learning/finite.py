"""Finds out whether a training is still finite, and which of its numbers is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import nests
from agentkit.types import Array, Nest

_MOST_METRICS = 30
"""Which have a bit each; the next one is the new priorities'."""


def all_finite(nest: Nest) -> bool:
    """Returns whether every floating-point number of a nest is finite; waits for the device."""
    if jax.default_backend() != "cpu":
        return bool(_all_finite(nest))
    # XLA takes 0.2 s to compile what numpy does at once, on arrays that are in this memory anyway.
    leaves = (leaf for leaf in jax.tree.leaves(jax.device_get(nest)) if _is_float(leaf))
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves)


@jax.jit
def _all_finite(nest: Nest) -> jax.Array:
    leaves = [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves] or [jnp.array(True)]))


def start_tally(num_updates: int) -> np.ndarray:
    """Returns what a learner's compiled calls hand on to each other beside the training state, int32 ``[3]``.

    That is the number of updates so far; the first one since with a metric that was not finite, or with new priorities
    that no replay takes, -1 for none; and which these were, as bits.
    """
    return np.array([num_updates, -1, 0], np.int32)


def are_priorities(values: Array) -> jax.Array:
    """Returns which values a replay takes as priorities, bool: those that are finite and at least 0."""
    found: jax.Array = jnp.isfinite(values) & (values >= 0)
    return found


def add_to_tally(
    tally: jax.Array, metrics: Mapping[str, Any], num_updates: int, priorities: Array | None = None
) -> jax.Array:
    """Returns the tally (see `start_tally`) after `num_updates` more updates; to be compiled with them.

    A loss may be infinite once and the parameters stay finite: who looks at the newest metrics alone would miss it.

    Args:
        tally: before them.
        metrics: of theirs.
        num_updates: that were made.
        priorities: the new ones, where nobody looks at them on the host; None for none.
    """
    after = tally[0] + num_updates
    bad = [~jnp.isfinite(jnp.mean(metrics[name])) for name in sorted(metrics)[:_MOST_METRICS]]
    bits = sum(each.astype(jnp.int32) << i for i, each in enumerate(bad))
    if priorities is not None:
        bits += jnp.any(~are_priorities(priorities)).astype(jnp.int32) << _MOST_METRICS
    is_first = (tally[1] < 0) & (bits != 0)
    return jnp.stack([after, jnp.where(is_first, after, tally[1]), jnp.where(is_first, bits, tally[2])])


def describe_bad(state: Nest, names: Sequence[str], tally: np.ndarray) -> str:
    """Returns a sentence on which metrics, and which array of a training state, are not finite.

    Args:
        state: the training state: parameters, optimiser states.
        names: of all metrics, sorted.
        tally: see `start_tally`.
    """
    bad = []
    num_updates, first_bad, bits = (int(number) for number in tally)
    if first_bad >= 0:
        names = [name for i, name in enumerate(names[:_MOST_METRICS]) if bits >> i & 1]
        if names:
            bad.append(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} nan or inf at update {first_bad:,}")
        if bits >> _MOST_METRICS & 1:
            bad.append(f"new priorities were nan, inf or below 0 at update {first_bad:,}")
    arrays = nests.flatten_to_paths(jax.device_get(state))
    counts = {path: int(np.sum(~np.isfinite(array))) for path, array in arrays.items() if _is_float(array)}
    broken = [path for path, count in counts.items() if count]
    if broken:
        first = broken[0]
        others = f" and in {len(broken) - 1} more arrays" if len(broken) > 1 else ""
        bad.append(f"{counts[first]} of {np.size(arrays[first])} numbers in {first}{others} are nan or inf")
    return (
        f"After update {num_updates:,} the training is no longer finite: {'; '.join(bad)}. Common causes are huge "
        "rewards (scale or clip them) and too large a learning rate (lower it, or set max_grad_norm)."
    )


def _is_float(array: np.ndarray) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))
