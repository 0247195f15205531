"""One vector out of a dict of observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.errors import SpecError, unknown_name
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper


@final
class ConcatObservations(ObservationWrapper):
    """Flattens a dict observation into one float32 vector ``[D]``, in the dict's order.

    An action mask stays beside the vector: ``{"action_mask": mask, "observation": vector}``. Works on one environment
    and on a batch (``[N, D]``).

    Args:
        environment: an environment whose observation is a dict of scalars and vectors.
        names: which entries, in which order; all by default, but for an action mask.

    Raises:
        SpecError: if the observation is no flat dict, an entry is an image, or there is none to take.
        UnknownNameError: if `names` holds a name that is no entry.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment, names: Sequence[str] | None = None):
        super().__init__(environment)
        inner = environment.observation_spec()
        if not isinstance(inner, dict):
            raise SpecError(
                f"ConcatObservations expects a dict observation, found {type(inner).__name__}. Leave the wrapper away."
            )
        self._names = [name for name in (inner if names is None else names) if name != specs.ACTION_MASK]
        if not self._names:
            raise SpecError(f"ConcatObservations expects an entry to take, found none among {', '.join(inner)}.")
        for name in self._names:
            if name not in inner:
                raise unknown_name("observation", name, inner)
            if not specs.is_spec(inner[name]) or len(inner[name].shape) > 1:
                raise SpecError(
                    f"ConcatObservations expects scalars and vectors, found {inner[name]!r} under {name!r}. "
                    "Name the entries to concatenate with names=[...]."
                )
        size = sum(int(np.prod(inner[name].shape)) for name in self._names)
        # A batch keeps its first axis.
        self._leading = (environment.num_envs,) if specs.is_batched(environment) else ()
        vector = specs.Array((size,), np.float32, name="observation")
        self._mask = specs.ACTION_MASK if specs.ACTION_MASK in inner else None
        self._spec = vector if self._mask is None else {self._mask: inner[self._mask], "observation": vector}

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type, reward, discount, observation = timestep
        parts = [np.reshape(observation[name], (*self._leading, -1)) for name in self._names]
        vector = np.concatenate(parts, axis=-1, dtype=np.float32, casting="unsafe")  # [D] or [N, D]
        seen = vector if self._mask is None else {self._mask: observation[self._mask], "observation": vector}
        return dm_env.TimeStep(step_type, reward, discount, seen)

    def observation_spec(self) -> Nest:
        """Returns float32 ``[D]``, and the action mask where there is one."""
        return self._spec
