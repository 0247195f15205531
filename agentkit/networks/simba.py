"""SimBa's residual network, whose normalised blocks let critics and policies grow (Lee et al. 2025, 2410.09754)."""

from __future__ import annotations

import haiku as hk
import jax

from agentkit.networks.mlp import orthogonal
from agentkit.networks.torsos import torso
from agentkit.types import Nest

_EXPANSION = 4


def simba_torso(observation: Nest, width: int = 128, num_blocks: int = 2) -> jax.Array:
    """Returns features ``[B, width]`` of observations: a linear layer, residual blocks, and layer normalisation.

    A block is x + linear(relu(linear(norm(x)))), four times as wide inside. The paper's normalisation of observations
    is `agents.addons.with_normalization`. Its policies have one block of 128 units, its critics two of 512, into which
    the actions go, too; behind this torso they join its features.

    Args:
        observation: an array ``[B, ...]`` or a nest of them. An action mask is left out, images are seen by `torso`.
        width: units of the features; another one by ``functools.partial(simba_torso, width=512)``.
        num_blocks: residual blocks.
    """
    x = hk.Linear(width, w_init=orthogonal(1.0))(torso(observation))
    for _ in range(num_blocks):
        inner = jax.nn.relu(hk.Linear(_EXPANSION * width, w_init=orthogonal(2.0**0.5))(_normalize(x)))
        x = x + hk.Linear(width, w_init=orthogonal(1.0))(inner)
    return _normalize(x)


def _normalize(x: jax.Array) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)
