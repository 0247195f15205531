"""Tables as Reverb's own, and what Reverb says of them as ours."""

from __future__ import annotations

import math
import sys
from typing import Any

import tree

from agentkit.replay.rate_limiter import RateLimiter
from agentkit.replay.reverb.library import TensorSpec, reverb, uint8
from agentkit.replay.reverb.packing import FORMAT, Packing
from agentkit.replay.table import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Table, Uniform, describe_leaves
from agentkit.types import TableInfo


def make_table(table: Table) -> Any:
    """Makes Reverb's table. Its signature, which the server keeps, is of bytes; its names describe the leaves.

    Raises:
        ConfigError: a leaf of a dtype that cannot be stored.
    """
    packing = Packing(table)
    leaves = "; ".join(describe_leaves(table.signature))
    signature = tuple(
        TensorSpec(shape, uint8, f"{FORMAT}, column {i} of: {leaves}") for i, shape in enumerate(packing.columns)
    )
    return reverb.Table(
        name=table.name,
        sampler=_selector(table.sampler),
        remover=_selector(table.remover),
        max_size=table.max_size,
        rate_limiter=_limiter(table.rate_limiter),
        max_times_sampled=table.max_times_sampled,
        signature=signature,
    )


def _selector(selector: Selector) -> Any:
    if isinstance(selector, Prioritized):
        return reverb.selectors.Prioritized(selector.exponent)
    made = {
        Uniform: reverb.selectors.Uniform,
        Fifo: reverb.selectors.Fifo,
        Lifo: reverb.selectors.Lifo,
        MinHeap: reverb.selectors.MinHeap,
        MaxHeap: reverb.selectors.MaxHeap,
    }
    return made[type(selector)]()


def _limiter(limiter: RateLimiter) -> Any:
    most = sys.float_info.max
    return reverb.rate_limiters.RateLimiter(
        samples_per_insert=limiter.samples_per_insert,
        min_size_to_sample=limiter.min_size_to_sample,
        min_diff=max(limiter.min_difference, -most),
        max_diff=min(limiter.max_difference, most),
    )


def table_info(info: Any) -> TableInfo:
    """Returns our counters, from Reverb's."""
    limiter = info.rate_limiter_info
    return TableInfo(
        name=info.name,
        size=int(info.current_size),
        max_size=int(info.max_size),
        num_inserted=int(limiter.insert_stats.completed),
        num_sampled=int(limiter.sample_stats.completed),
    )


def describe(info: Any) -> dict[str, Any]:
    """Returns the facts that must agree between a server's table and our description of it."""
    limiter = info.rate_limiter_info
    leaves = tree.flatten(info.signature) if info.signature is not None else []
    return {
        "max_size": int(info.max_size),
        "max_times_sampled": int(info.max_times_sampled),
        "sampler": str(info.sampler_options).replace("\n", " ").strip(),
        "remover": str(info.remover_options).replace("\n", " ").strip(),
        "rate_limiter": (
            limiter.samples_per_insert,
            int(limiter.min_size_to_sample),
            limiter.min_diff,
            limiter.max_diff,
        ),
        "signature": [f"{leaf.name}: {leaf.dtype.name}{leaf.shape.as_list()}" for leaf in leaves],
    }


def is_free(table: Table) -> bool:
    """Returns whether drawing ahead takes nothing from anyone."""
    limiter = table.rate_limiter
    free = math.isinf(limiter.min_difference) and math.isinf(limiter.max_difference)
    return free and table.max_times_sampled == 0
