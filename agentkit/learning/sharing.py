"""Several devices: which of them computes which rows of a batch (GSPMD, Xu et al. 2021, 2105.04663).

Parameters are on each device and rows are split among them; of that XLA makes a program for each, with the mean of the
gradients inside. A minibatch that is picked out of a batch must be split anew: XLA would have each device compute all
of it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Rows = TypeVar("Rows")

AXIS = "batch"
"""The name of a mesh's only axis."""

_MESH: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def make_mesh(devices: Sequence[jax.Device] | None) -> Mesh | None:
    """Returns the mesh of a training that is shared among devices; None for JAX's default device."""
    return None if devices is None else Mesh(np.asarray(devices), (AXIS,))


def on_each(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of what each device has whole, such as parameters."""
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Returns the sharding of arrays that are split along an axis, such as a batch's."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


@contextlib.contextmanager
def shared_among(mesh: Mesh | None) -> Iterator[None]:
    """Has `split_rows` split among a mesh's devices what is traced inside; None for one device."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def split_rows(rows: Rows) -> Rows:
    """Returns a batch or minibatch whose rows the devices share, where several train; to be traced.

    Args:
        rows: leaves ``[M, ...]``; where the devices do not divide M, each computes all of them.
    """
    mesh = _MESH.get()
    if mesh is None:
        return rows

    def share(leaf: jax.Array) -> jax.Array:
        return leaf if leaf.shape[0] % mesh.size else jax.lax.with_sharding_constraint(leaf, split(mesh))

    shared: Rows = jax.tree.map(share, rows)
    return shared


def on_parts(function: Callable[..., Any], mesh: Mesh, num_whole: int) -> Callable[..., Any]:
    """Returns a function that runs on each device by itself, on its part of the arguments; to be compiled.

    Args:
        function: of arguments with leaves ``[M, ...]``, to results of such leaves.
        mesh: its devices must divide M.
        num_whole: how many of the last arguments each device has whole instead.
    """
    part = PartitionSpec(AXIS)

    def run(*arguments: Any) -> Any:
        places = (*[part] * (len(arguments) - num_whole), *[PartitionSpec()] * num_whole)
        if hasattr(jax, "shard_map"):
            mapped = jax.shard_map(function, mesh=mesh, in_specs=places, out_specs=part, check_vma=False)
        else:  # Before JAX 0.6.
            from jax.experimental.shard_map import shard_map

            mapped = shard_map(function, mesh=mesh, in_specs=places, out_specs=part, check_rep=False)
        return mapped(*arguments)

    return run
