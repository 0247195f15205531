"""A policy that knows nothing, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.actors.policy import Policy, stateless_policy
from agentkit.types import Array, Nest, Params


def random_policy(spec: Nest) -> Policy:
    """Returns the policy that draws among the actions that are allowed, as `actors.random_actor` does on the host.

    Args:
        spec: of the actions.
    """

    def act(params: Params, key: Array, observation: Nest) -> Nest:
        del params
        mask = observation.get(specs.ACTION_MASK) if isinstance(observation, dict) else None
        if mask is not None:
            return jax.random.categorical(key, jnp.where(jnp.asarray(mask, bool), 0.0, -jnp.inf)).astype(spec.dtype)
        leaves, structure = jax.tree.flatten(spec)
        drawn = [_draw(leaf, each) for leaf, each in zip(leaves, jax.random.split(key, len(leaves)), strict=True)]
        return jax.tree.unflatten(structure, drawn)

    return stateless_policy(act)


def _draw(spec: specs.Array, key: Array) -> Any:
    if isinstance(spec, specs.DiscreteArray):
        return jax.random.randint(key, spec.shape, 0, spec.num_values, spec.dtype)
    if isinstance(spec, specs.BoundedArray) and not np.issubdtype(spec.dtype, np.floating):
        return jax.random.randint(key, spec.shape, jnp.asarray(spec.minimum), jnp.asarray(spec.maximum) + 1, spec.dtype)
    if isinstance(spec, specs.BoundedArray) and all(np.isfinite(x).all() for x in (spec.minimum, spec.maximum)):
        return jax.random.uniform(key, spec.shape, spec.dtype, jnp.asarray(spec.minimum), jnp.asarray(spec.maximum))
    return jax.random.normal(key, spec.shape, spec.dtype)
