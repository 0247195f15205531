"""Torsos by choice: those with a name, and a user's own, which gets its inputs ready."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.errors import SpecError, unknown_name
from agentkit.networks.drq import drq_torso
from agentkit.networks.residual import residual_torso
from agentkit.networks.simba import simba_torso
from agentkit.networks.torsos import Torso, flatten_torso, nature_torso, shallow_torso, to_unit_image
from agentkit.networks.torsos import torso as any_torso
from agentkit.specs import is_image
from agentkit.types import Array, Nest

TORSOS: dict[str, Torso] = {
    "nature": nature_torso,
    "shallow": shallow_torso,
    "impala": residual_torso,
    "drq": drq_torso,
    "simba": simba_torso,
    "flatten": flatten_torso,
}
"""Torsos that ``make_agent(torso="NAME")`` and ``--torso NAME`` take by name."""


def torso_named(name: str) -> Torso:
    """Returns a torso of `TORSOS`.

    Raises:
        UnknownNameError: there is none of this name; proposes the nearest one.
    """
    if name not in TORSOS:
        raise unknown_name("torso", name, TORSOS, "Give a function for any other: make_agent(torso=my_torso).")
    return TORSOS[name]


@final
@dataclasses.dataclass(frozen=True)
class OwnTorso:
    """Applies a user's torso to observations that are ready for it, and refuses what are no features.

    Choices have become indicators, as by `encode_inputs`; images are float32 ``[B, H, W, C]`` in [0, 1]; all else is
    float32 in its own shape ``[B, ...]``, but for an action mask. A dictionary or tuple stays one.

    Attributes:
        torso: ``observation -> features [B, D]``, which may use Haiku modules; or a class of Haiku modules that can be
            made without arguments, or a `functools.partial` of a class with them.
    """

    torso: Callable[..., Any]

    def __call__(self, observation: Nest) -> Array:
        """Returns features ``[B, D]``.

        Raises:
            SpecError: the torso returns something else.
        """
        apply = self.torso() if _is_module_class(self.torso) else self.torso
        # Made ready twice, an image might be taken for one of another layout.
        raw = _makes_inputs_ready(self.torso)
        inputs = observation if raw else jax.tree_util.tree_map_with_path(_ready, observation)
        features = apply(inputs)
        batch_size = jax.tree.leaves(observation)[0].shape[0]
        if getattr(features, "ndim", None) != 2 or features.shape[0] != batch_size:
            found = jax.tree.map(lambda x: list(jnp.shape(x)), features)
            raise SpecError(
                f"Expected the torso {torso_name(self.torso)} to return features [B, D], here [{batch_size}, D], "
                f"found shape {found}. Flatten what it returns, with one row for each observation."
            )
        return features


def torso_name(torso: Callable[..., Any]) -> str:
    """Returns what a torso is called in messages."""
    function = _unwrapped(torso)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _unwrapped(torso: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a `functools.partial` is of."""
    return torso.func if isinstance(torso, functools.partial) else torso


def _is_module_class(torso: Callable[..., Any]) -> bool:
    made = _unwrapped(torso)
    return isinstance(made, type) and issubclass(made, hk.Module)


def _makes_inputs_ready(torso: Callable[..., Any]) -> bool:
    function = _unwrapped(torso)
    return isinstance(function, OwnTorso) or any(function is each for each in (any_torso, *TORSOS.values()))


def _ready(path: tuple[Any, ...], leaf: Array) -> Array:
    if path and getattr(path[-1], "key", None) == specs.ACTION_MASK:
        return leaf
    return to_unit_image(leaf) if is_image(leaf.shape[1:]) else leaf.astype(jnp.float32)
