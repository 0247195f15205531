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
        mask = specs.find_action_mask(observation, spec)
        if mask is not None:
            is_legal = jnp.asarray(mask, bool)
            is_legal |= ~is_legal.any()
            return jax.random.categorical(key, jnp.where(is_legal, 0.0, -jnp.inf)).astype(spec.dtype)
        leaves, structure = jax.tree.flatten(spec)
        drawn = [_draw(leaf, each) for leaf, each in zip(leaves, jax.random.split(key, len(leaves)), strict=True)]
        return jax.tree.unflatten(structure, drawn)

    return stateless_policy(act)


def _draw(spec: specs.Array, key: Array) -> Any:
    if isinstance(spec, specs.DiscreteArray):
        return jax.random.randint(key, spec.shape, 0, spec.num_values, spec.dtype)
    if isinstance(spec, specs.BoundedArray) and not np.issubdtype(spec.dtype, np.floating):
        return _draw_integers(spec, key)
    if isinstance(spec, specs.BoundedArray):
        return _draw_bounded(spec, key)
    return jax.random.normal(key, spec.shape, spec.dtype)


def _draw_bounded(spec: specs.BoundedArray, key: Array) -> Array:
    """Returns floats; one with a bound on one side alone is as far from it as a normal number, one with none normal."""
    has_low, has_high = (specs.is_finite_bound(bound, spec.dtype) for bound in (spec.minimum, spec.maximum))
    low, high = (
        jnp.asarray(np.where(has, bound, np.zeros_like(bound)))
        for has, bound in ((has_low, spec.minimum), (has_high, spec.maximum))
    )
    uniform = jax.random.uniform(key, spec.shape, spec.dtype, low, high)
    if specs.has_finite_bounds(spec):
        return uniform
    normal = jax.random.normal(key, spec.shape, spec.dtype)  # Of one key: each number is one or the other.
    return jnp.select(
        [has_low & has_high, has_low, has_high], [uniform, low + jnp.abs(normal), high - jnp.abs(normal)], normal
    )


def _draw_integers(spec: specs.BoundedArray, key: Array) -> Array:
    """Returns integers or booleans, both bounds included: counted from the lower in 32 bits, where nothing wraps."""
    kind = np.uint32 if np.dtype(spec.dtype).kind == "u" else np.int32
    low, high = (np.clip(x, *_range_of(kind)).astype(np.int64) for x in (spec.minimum, spec.maximum))
    number = high - low + 1
    is_all = number == 2**32  # Which uint32 cannot say.
    drawn = jax.random.randint(key, spec.shape, 0, np.where(is_all, 1, number).astype(np.uint32), jnp.uint32)
    drawn = jnp.where(is_all, jax.random.bits(key, spec.shape, jnp.uint32), drawn) + low.astype(np.uint32)
    return jax.lax.bitcast_convert_type(drawn, kind).astype(spec.dtype)


def _range_of(kind: type[np.integer]) -> tuple[int, int]:
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)
