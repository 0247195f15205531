"""Invalid actions: an observation may say which discrete actions can be taken, and networks then rule out the others.

An environment has a mask if its observations are a dictionary (or hold one) with the key ``action_mask``: booleans or
integers ``[A]``, not 0 where an action may be taken, as in PettingZoo and RLlib. Networks take it from the observation
that they see. So the same mask holds in acting, in exploring, in the targets and in a policy's entropy.
Decision 39 says why it is in the observation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.types import Array, Nest


def split_action_mask(observation: Nest) -> tuple[list[Any], list[Any]]:
    """Returns the observation's leaves that are no mask, and those that are: none, or one ``[B, A]``."""
    leaves: tuple[list[Any], list[Any]] = ([], [])
    for path, leaf in jax.tree_util.tree_flatten_with_path(observation)[0]:
        leaves[bool(path) and getattr(path[-1], "key", None) == specs.ACTION_MASK].append(leaf)
    return leaves


def action_mask(observation: Nest) -> Array | None:
    """Returns the mask of legal actions, bool ``[B, A]``; None if the observation has none.

    A mask that allows no action (as some environments give once an episode has ended) allows all.

    Raises:
        SpecError: more than one mask, or one of floats.
    """
    _, found = split_action_mask(observation)
    if not found:
        return None
    if len(found) > 1 or jnp.issubdtype(found[0].dtype, jnp.floating):
        raise SpecError(
            f"Expected one {specs.ACTION_MASK!r} of booleans or integers in an observation, found "
            f"{', '.join(f'{mask.dtype.name}{list(mask.shape[1:])}' for mask in found)}. Rename or convert it."
        )
    mask = jnp.asarray(found[0]) != 0
    return mask | ~jnp.any(mask, axis=-1, keepdims=True)


def mask_illegal(values: Array, observation: Nest) -> jax.Array:
    """Sets the values of actions that the observation rules out to `specs.ILLEGAL_VALUE`.

    Args:
        values: of actions, or their logits: ``[B, A]``, or ``[B, N, A]``.
        observation: what they are for, ``[B, ...]``.

    Raises:
        SpecError: a mask of another size than A.
    """
    mask = action_mask(observation)
    if mask is None:
        return values
    if mask.shape[1:] != values.shape[-1:]:
        raise SpecError(
            f"Expected an {specs.ACTION_MASK!r} with one entry for each of {values.shape[-1]} actions, "
            f"found shape {list(mask.shape[1:])}."
        )
    return jnp.where(mask if values.ndim == mask.ndim else mask[:, None], values, specs.ILLEGAL_VALUE)


def refuse_action_mask(observation: Nest) -> None:
    """Raises SpecError where an observation has a mask, for networks of actions that are not one discrete choice."""
    if split_action_mask(observation)[1]:
        raise SpecError(
            f"An {specs.ACTION_MASK!r} in an observation rules out some of A discrete actions, found it with actions "
            "of another kind. Leave it out, or rename it where it is something else."
        )


def is_legal(values: Array) -> jax.Array:
    """Returns which values no mask has ruled out, bool like `values`."""
    return values > specs.ILLEGAL_VALUE / 2


def mean_legal(values: Array) -> jax.Array:
    """Returns the mean ``[]`` of the values that no mask has ruled out, to log."""
    return jnp.mean(values, where=is_legal(values))
