"""Finds out whether a training is still finite, and which of its numbers is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import nests
from agentkit.types import Nest


@jax.jit
def all_finite(nest: Nest) -> jax.Array:
    """Returns whether every floating-point number of a nest is finite: one bool ``[]``."""
    leaves = [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves] or [jnp.array(True)]))


NONE_BAD = np.array([-1, 0], np.int32)
"""The first update with a metric that was not finite, and the metrics' numbers as bits: none yet."""


def note_bad(bad: jax.Array, metrics: Mapping[str, Any], num_updates: jax.Array) -> jax.Array:
    """Returns `bad` (see `NONE_BAD`) with the metrics of one more update; to be compiled with it.

    A loss may be infinite once and the parameters stay finite: who looks at the newest metrics alone would miss it.
    """
    names = sorted(metrics)[:31]
    bits = sum((~jnp.isfinite(jnp.mean(metrics[name]))).astype(jnp.int32) << i for i, name in enumerate(names))
    bits = jnp.asarray(bits, jnp.int32)
    return jnp.where((bad[0] < 0) & (bits != 0), jnp.stack([num_updates.astype(jnp.int32), bits]), bad)


def describe_bad(state: Nest, names: Sequence[str], found: np.ndarray, num_updates: int) -> str:
    """Returns a sentence on which metrics, and which array of a training state, are not finite.

    Args:
        state: the training state: parameters, optimiser states.
        names: of all metrics, sorted.
        found: what `note_bad` returned.
        num_updates: updates so far.
    """
    bad = []
    if found[0] >= 0:
        names = [name for i, name in enumerate(names[:31]) if found[1] >> i & 1]
        bad.append(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} nan or inf at update {found[0]:,}")
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
