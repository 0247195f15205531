"""Critics with dropout and layer normalisation, for many updates a step (Hiraoka et al. 2021, 2110.02034)."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.networks.action_mask import refuse_action_mask
from agentkit.networks.mlp import orthogonal_mlp
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest


def dropout_critic(
    observation: Nest, action: Array, hidden_sizes: Sequence[int], rate: float, torso: Torso = torso
) -> jax.Array:
    """Returns a critic's values ``[B]``; hidden layers are linear, dropout, layer norm, ReLU (paper, figure 1).

    It takes a PRNG key where it is applied, which says what units to drop; each item of a batch drops others.

    Args:
        observation: ``[B, ...]``.
        action: ``[B, A]``.
        hidden_sizes: units of each hidden layer.
        rate: the chance that a unit is dropped, in [0, 1); the others are scaled up.
        torso: from observations to features ``[B, F]``.
    """

    def regularise(x: Array) -> jax.Array:
        x = hk.dropout(hk.next_rng_key(), rate, x)
        return jax.nn.relu(hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x))

    refuse_action_mask(observation)
    features = jnp.concatenate([torso(observation), action], axis=-1)
    return orthogonal_mlp(features, hidden_sizes, 1, activation=regularise)[:, 0]
