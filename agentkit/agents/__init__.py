"""Agents: each file an algorithm, as one value; and what an agent from scratch is made of.

    Agent          an algorithm as a value: networks, policy, update, experience; or an actor and a learner of your own
    compose        an agent of the functions that a hand-written loop calls
    Transitions    one of three ways to keep experience, with its ReplayConfig; the others are Sequences and Segments
    Configured     a function of an algorithm's file, with its settings
    UpdateOfLoss   an update of networks, a loss and settings

``agents.registry`` finds agents by name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.agents.common.agent import Agent as Agent
    from agentkit.agents.common.agent import Configured as Configured
    from agentkit.agents.common.agent import UpdateOfLoss as UpdateOfLoss
    from agentkit.agents.common.compose import compose as compose
    from agentkit.agents.common.experience import ReplayConfig as ReplayConfig
    from agentkit.agents.common.experience import Segments as Segments
    from agentkit.agents.common.experience import SegmentsConfig as SegmentsConfig
    from agentkit.agents.common.experience import Sequences as Sequences
    from agentkit.agents.common.experience import SequencesConfig as SequencesConfig
    from agentkit.agents.common.experience import Transitions as Transitions

_HOMES = {
    "agent": ("Agent", "Configured", "UpdateOfLoss"),
    "compose": ("compose",),
    "experience": ("ReplayConfig", "Segments", "SegmentsConfig", "Sequences", "SequencesConfig", "Transitions"),
}

__all__ = [
    "Agent",
    "Configured",
    "ReplayConfig",
    "Segments",
    "SegmentsConfig",
    "Sequences",
    "SequencesConfig",
    "Transitions",
    "UpdateOfLoss",
    "compose",
]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used (PEP 562)."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"agentkit.agents.common.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
