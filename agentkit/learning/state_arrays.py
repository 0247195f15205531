"""A training state as arrays by name, which is what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.errors import CheckpointError
from agentkit.types import Nest


def by_path(state: Nest) -> dict[str, np.ndarray]:
    """The leaves of a nest, each under the path that leads to it, such as ``".params['linear']['w']"``."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def like(state: Nest, arrays: Mapping[str, np.ndarray]) -> Nest:
    """The nest that `by_path` made `arrays` of, with the structure of `state`.

    Raises:
        CheckpointError: an array is missing, unknown, or of another shape or dtype than in `state`.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    remaining = dict(arrays)
    leaves = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path)
        found = remaining.pop(name, None)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            what = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise CheckpointError(
                f"Learner state {name}: expected {leaf.dtype}{list(leaf.shape)}, found {what}. "
                "Resume with the agent, networks and config it was saved with."
            )
        leaves.append(jnp.array(found))
    if remaining:
        raise CheckpointError(f"The checkpoint has learner state that this agent lacks: {sorted(remaining)}.")
    return jax.tree.unflatten(structure, leaves)
