"""One stream of steps, several adders: for learners of different kinds that learn from the same actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dm_env

from agentkit import core
from agentkit.adders.base import read
from agentkit.errors import ConfigError
from agentkit.types import Nest


class TeeAdder(core.Adder):
    """Gives every step to each of some adders, in their order; each has a writer of its own.

    Where one waits for its table's rate limit, all wait: the slowest learner sets the pace.
    """

    def __init__(self, adders: Sequence[core.Adder]):
        """Takes the adders, which are closed with this.

        Raises:
            ConfigError: there are none.
        """
        if not adders:
            raise ConfigError("A TeeAdder needs at least one adder, found none.")
        self._adders = tuple(adders)

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        for adder in self._adders:
            adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step. All adders must expect the same extras: those of the policy that acts (see `WithoutExtras`)."""
        for adder in self._adders:
            adder.add(action, next_timestep, extras)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        for adder in self._adders:
            adder.reset()

    def close(self) -> None:
        """Closes all adders, also where one cannot confirm its items; the first error is raised then."""
        errors = []
        for adder in self._adders:
            try:
                adder.close()
            except Exception as error:  # The others' items are still to be confirmed.
                errors.append(error)
        if errors:
            raise errors[0]

    def save(self) -> dict[str, Any]:
        """Returns the states in mid-episode, by number (a `Saveable`)."""
        return {str(i): adder.save() for i, adder in enumerate(self._adders)}  # type: ignore[attr-defined]

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replays were restored."""
        states = read(state, *(str(i) for i in range(len(self._adders))))
        for adder, saved in zip(self._adders, states, strict=True):
            adder.restore(saved)  # type: ignore[attr-defined]


class WithoutExtras(core.Adder):
    """Drops the policy's extras, for learners from another policy's actions."""

    def __init__(self, adder: core.Adder):
        """Takes an adder that expects no extras; it is closed with this."""
        self._adder = adder

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step without its extras."""
        del extras
        self._adder.add(action, next_timestep)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._adder.reset()

    def close(self) -> None:
        """Closes the adder."""
        self._adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the adder's state (a `Saveable`)."""
        return self._adder.save()  # type: ignore[attr-defined]

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._adder.restore(state)  # type: ignore[attr-defined]
