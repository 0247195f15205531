"""Single environments cut out of a batch's leaves ``[N, ...]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit.core import Adder
from agentkit.errors import CheckpointError
from agentkit.types import FIRST, WAIT, Nest

_STEP_TYPES = tuple(dm_env.StepType)


def index(nest: Nest, i: int) -> Nest:
    """Returns element `i` of each leaf."""
    return tree.map_structure(lambda x: x[i], nest) if tree.is_nested(nest) else nest[i]


def element(timestep: dm_env.TimeStep, i: int) -> dm_env.TimeStep:
    """Returns time step number `i` of a batch; FIRST ones have neither reward nor discount, as in dm_env."""
    step_type = _STEP_TYPES[timestep.step_type[i]]
    observation = index(timestep.observation, i)
    if step_type is dm_env.StepType.FIRST:
        return dm_env.TimeStep(step_type, None, None, observation)
    return dm_env.TimeStep(step_type, index(timestep.reward, i), index(timestep.discount, i), observation)


class SplitAdder(Adder):
    """Gives each environment's steps of a batch to an adder of its own."""

    def __init__(self, adders: Sequence[Adder]):
        """Takes one adder for each environment, closed with this."""
        self._adders = tuple(adders)

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Adder`; leaves are ``[N, ...]``."""
        for i, adder in enumerate(self._adders):
            adder.add_first(element(timestep, i))

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `core.Adder`; an environment of step type FIRST begins an episode, and one of WAIT does nothing."""
        step_types = np.asarray(next_timestep.step_type).tolist()
        for i, adder in enumerate(self._adders):
            if step_types[i] == FIRST:
                adder.add_first(element(next_timestep, i))
            elif step_types[i] != WAIT:
                adder.add(index(action, i), element(next_timestep, i), index(extras, i))

    def reset(self) -> None:
        """Drops all unfinished episodes."""
        for adder in self._adders:
            adder.reset()

    def close(self) -> None:
        """Closes all."""
        for adder in self._adders:
            adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the adders' states by number (a `core.Saveable`)."""
        return {str(i): adder.save() for i, adder in enumerate(self._adders)}  # type: ignore[attr-defined]

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        if len(state) != len(self._adders):
            raise CheckpointError(
                f"Expected the states of {len(self._adders)} adders, found {len(state)}. Resume with the num_envs "
                "that it was saved with."
            )
        for i, adder in enumerate(self._adders):
            adder.restore(state[str(i)])  # type: ignore[attr-defined]
