"""What the players of a game must have in common, so that one agent can play for both; this file loads no JAX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.types import AgentId, Nest

DISCOUNTS = specs.BoundedArray((), np.float32, -1.0, 1.0, "discount")
"""The spec of discounts that change sides."""


def find_spec(agent_specs: Mapping[AgentId, specs.EnvironmentSpec], name: str) -> specs.EnvironmentSpec:
    """Returns the spec of the one agent that plays both sides of a game.

    Raises:
        SpecError: it has other than two agents, or they do not see and do the like.
    """
    if len(agent_specs) != 2:
        raise SpecError(
            f"both_sides: is for games of two, and {name} has {len(agent_specs)} agents: {', '.join(agent_specs)}. Say "
            "who plays whom: --policies shared (or each), in Python agentkit.MultiAgentConfig."
        )
    one, other = agent_specs.values()
    for part in ("observations", "actions"):
        if not _are_alike(getattr(one, part), getattr(other, part)):
            raise SpecError(
                f"both_sides: is for players that are alike, and those of {name} have {part} "
                f"{getattr(one, part)} and {getattr(other, part)}. Give each a policy: --policies each."
            )
    return one._replace(discounts=DISCOUNTS)


def _are_alike(one: Nest, other: Nest) -> bool:
    try:
        tree.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return all(a == b for a, b in zip(tree.flatten(one), tree.flatten(other), strict=True))
