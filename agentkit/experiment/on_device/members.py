"""Members: agents that train side by side in one compiled program, each as if it were alone.

A program for one agent is mapped over many by `jax.vmap`. There a loop or a branch whose condition differs between them
is computed for all, and its whole state copied to keep the others' as it was. So loops go on while any member wants it,
and members that do not want it keep the little that changes: their items are never copied (decision 106).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.types import Array

AXIS = "members"
"""The name of the axis that `jax.vmap` maps over."""


class Members(NamedTuple):
    """Says whether a program is one of many, mapped over them.

    Attributes:
        are_many: False for one agent alone, for which all of this costs nothing.
    """

    are_many: bool = False

    def any(self, condition: Array) -> Array:
        """Returns whether it is true of any member, bool ``[]``: the same for all."""
        return jax.lax.psum(condition.astype(jnp.int32), AXIS) > 0 if self.are_many else condition

    def choose(self, condition: Array, new: Any, old: Any) -> Any:
        """Returns the new state of a member of which it is true, and the old one of another; alone it is true."""
        if not self.are_many:
            return new
        return jax.tree.map(lambda one, other: jnp.where(condition, one, other), new, old)


ALONE = Members()
