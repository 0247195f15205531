"""Networks whose outputs are distributions of returns. Plain jax.numpy, since actors use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.networks.action_mask import mask_illegal
from agentkit.networks.mlp import mlp
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest


def action_outputs(
    observation: Nest, num_actions: int, num_outputs: int, hidden_sizes: Sequence[int], torso: Torso = torso
) -> jax.Array:
    """Returns N numbers for each action, ``[B, A, N]``: the logits of atoms, or the values of quantiles."""
    outputs = mlp(torso(observation), hidden_sizes, num_actions * num_outputs)
    return outputs.reshape(-1, num_actions, num_outputs)


def evenly_spaced_atoms(vmin: float, vmax: float, num_atoms: int) -> jax.Array:
    """Returns the atoms of a categorical distribution, float32 ``[num_atoms]``, from `vmin` to `vmax`.

    Raises:
        ConfigError: less than two atoms, or bounds that do not rise.
    """
    if num_atoms < 2:
        raise ConfigError(f"num_atoms must be at least 2, found {num_atoms}.")
    if not vmin < vmax:
        raise ConfigError(f"vmin must be less than vmax, found {vmin} and {vmax}.")
    return jnp.linspace(vmin, vmax, num_atoms, dtype=jnp.float32)


def categorical_mean(logits: Array, atoms: Array) -> jax.Array:
    """Returns the means ``[B, A]`` of distributions with `logits` ``[B, A, N]`` on `atoms` ``[N]``."""
    return jax.nn.softmax(logits) @ atoms


def share_at_edge(values: Array, low: Array | float, high: Array | float, where: Array | None = None) -> jax.Array:
    """Returns the share of `values` within 2 % of the ends of a support from `low` to `high`, ``[]``.

    Returns beyond a support count as its end: values there may not be true. The learner warns where they are many.

    Args:
        values: of any shape.
        low: the support's lower end.
        high: the support's upper end.
        where: bool, like `values`: which of them count; None for all.
    """
    margin = 0.02 * (high - low)
    counts = jnp.ones_like(values, bool) if where is None else where
    at_edge = counts & ((values > high - margin) | (values < low + margin))
    return jnp.sum(at_edge, dtype=jnp.float32) / jnp.maximum(jnp.sum(counts), 1)


class CategoricalNetwork(NamedTuple):
    """Holds the pure functions of a network of return distributions on atoms.

    Attributes:
        init: ``key -> params``.
        logits: ``(params, observation [B, ...]) -> [B, A, N]``, of the probability of each atom.
        atoms: the returns, rising, float32 ``[N]``.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[..., Array]
    atoms: Array

    def q_values(self, logits: Array, observation: Nest) -> jax.Array:
        """Returns the mean returns ``[B, A]``, `specs.ILLEGAL_VALUE` for actions that the observation rules out."""
        return mask_illegal(categorical_mean(logits, self.atoms), observation)


def implicit_quantiles(
    observation: Nest,
    taus: Array,
    num_actions: int,
    hidden_sizes: Sequence[int],
    num_cosines: int,
    torso: Torso = torso,
) -> jax.Array:
    """Returns the quantiles at `taus` ``[B, N]``, in [0, 1], of each action's return: ``[B, N, A]``.

    Dabney et al. 2018 (1806.06923), section 3.1: f(psi(x) * phi(tau)). Here psi is the torso and all hidden
    layers but the last, f is the last hidden layer and a linear one, and phi is eq. 4.
    """
    features = torso(observation)
    for size in hidden_sizes[:-1]:
        features = jax.nn.relu(hk.Linear(size)(features))  # [B, F]
    batch_size, num_taus = taus.shape
    frequencies = jnp.pi * jnp.arange(num_cosines, dtype=jnp.float32)
    cosines = jnp.cos(taus.reshape(-1, 1) * frequencies[None, :])  # [B N, num_cosines]
    embedding = jax.nn.relu(hk.Linear(features.shape[-1])(cosines))
    joined = jnp.repeat(features, num_taus, axis=0) * embedding  # [B N, F]
    quantiles = mlp(joined, hidden_sizes[-1:], num_actions).reshape(batch_size, num_taus, num_actions)
    return mask_illegal(quantiles, observation)
