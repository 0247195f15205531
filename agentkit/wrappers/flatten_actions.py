"""Continuous actions as vectors, whatever their shape."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.canonical_actions import is_bounded_continuous


@final
class FlattenActions(EnvironmentWrapper):
    """Makes each bounded continuous action a vector ``[A]``: a single number, a matrix and so on, row by row.

    Other leaves stay as they are. Works on one environment and on a batch.
    """

    works_on_batches = True
    stateless = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        inner = environment.action_spec()
        leading = (environment.num_envs,) if specs.is_batched(environment) else ()
        self._shapes = [(*leading, *leaf.shape) if needs_flattening(leaf) else None for leaf in tree.flatten(inner)]
        self._action_spec = tree.map_structure(_flat_spec, inner)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action whose continuous leaves are vectors."""
        pairs = zip(tree.flatten(action), self._shapes, strict=True)
        leaves = [leaf if shape is None else np.reshape(leaf, shape) for leaf, shape in pairs]
        return self._environment.step(tree.unflatten_as(action, leaves))

    def action_spec(self) -> Nest:
        """Returns the action spec, with ``[A]`` for each bounded continuous leaf."""
        return self._action_spec


def needs_flattening(spec: specs.Array) -> bool:
    """Returns True for a bounded continuous action that is no vector."""
    return is_bounded_continuous(spec) and len(spec.shape) != 1


def _flat_spec(spec: specs.Array) -> specs.Array:
    if not needs_flattening(spec):
        return spec
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in (spec.minimum, spec.maximum))
    return specs.BoundedArray(low.shape, spec.dtype, low, high, spec.name)
