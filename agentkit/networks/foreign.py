"""Carries the parameters of other libraries' modules as Haiku's, so that an agent's networks hold both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import numpy as np

from agentkit.errors import SpecError
from agentkit.types import Array, Nest


class ForeignModule(hk.Module):
    """Applies a pure pair of functions, whose parameters are those of this module."""

    def __init__(
        self,
        init: Callable[[jax.Array, Nest], Any],
        apply: Callable[[Any, Nest], Any],
        name: str,
    ):
        """Makes a module.

        Args:
            init: ``(key, observation [B, ...]) -> params``, any tree of arrays of floats.
            apply: ``(params, observation [B, ...]) -> features [B, D]``.
            name: of the module, in snake case.
        """
        super().__init__(name=name)
        self._init, self._apply = init, apply

    def __call__(self, observation: Nest) -> Any:
        """Returns the features.

        Raises:
            SpecError: a parameter is no array of floats, so that no gradient could change it.
        """
        shapes = jax.eval_shape(self._init, jax.ShapeDtypeStruct((2,), np.uint32), observation)
        values = self._init(hk.next_rng_key(), observation) if hk.running_init() else shapes
        paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
        params = []
        for (path, shape), value in zip(paths, jax.tree.leaves(values), strict=True):
            name = ".".join(key_label(key) for key in path)
            if not np.issubdtype(shape.dtype, np.floating):
                raise SpecError(
                    f"Expected parameters of {self.module_name} that are floats, found {name} of {shape.dtype}. Leave "
                    "what is not learned, such as counts and keys, out of the module's arrays."
                )
            params.append(hk.get_parameter(name, shape.shape, shape.dtype, init=_returning(value)))
        return self._apply(jax.tree_util.tree_unflatten(structure, params), observation)


def _returning(value: Array) -> Callable[[Any, Any], Array]:
    return lambda shape, dtype: value


def key_label(key: Any) -> str:
    """Returns what a key of a path in a tree of JAX's is called: an attribute's name, a dictionary's key, an index."""
    return str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))


def snake_case(name: str) -> str:
    """Returns a class's name as Haiku names modules.

    >>> snake_case("BoardTorso"), snake_case("CNN"), snake_case("<lambda>")
    ('board_torso', 'cnn', 'lambda')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"\W", "", words) or "torso"
