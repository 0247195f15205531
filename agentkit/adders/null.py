"""Records nothing."""

from __future__ import annotations

from typing import Any, final

import dm_env

from agentkit.core import Adder
from agentkit.types import Nest


@final
class NullAdder(Adder):
    """Takes steps and keeps none: the adder of an actor in evaluation."""

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Does nothing."""

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def save(self) -> dict[str, Any]:
        """Returns nothing (a `core.Saveable`)."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Does nothing."""
