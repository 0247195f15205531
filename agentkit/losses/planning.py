"""Losses of agents that learn a model: n-step targets within sequences, and cross-entropies to distributions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.types import Array


def n_step_targets(r_t: Array, discount_t: Array, values: Array, has_action_tm1: Array, n: int) -> jax.Array:
    """Computes n-step returns that bootstrap, ``[B, T]``, within sequences (Schrittwieser et al. 2020, section 3).

    r_1 + d_1 r_2 + ... + d_1 ... d_{k-1} r_k + d_1 ... d_k v_k. From each row k is n, or as many steps as there are
    before the sequence's end or a row without an action: an episode's final observation is bootstrapped from. No
    gradient flows.

    Args:
        r_t: rewards ``[B, T]``.
        discount_t: gamma times the environment's discount, ``[B, T]``.
        values: of the rows' observations, and of the one that follows them, ``[B, T + 1]``.
        has_action_tm1: 1 in rows with an action, 0 in final ones and behind them, ``[B, T]``.
        n: steps, >= 1. Rows without an action get their value.
    """
    total, weight, alive = jnp.zeros_like(r_t), jnp.ones_like(r_t), jnp.ones_like(r_t)
    num_steps = jnp.zeros(r_t.shape, jnp.int32)
    for i in range(n):
        reward, discount, action = (_later(x, i) for x in (r_t, discount_t, has_action_tm1))
        alive = alive * action
        total += alive * weight * reward
        weight = jnp.where(alive > 0, weight * discount, weight)
        num_steps += alive.astype(jnp.int32)
    reached = jnp.arange(r_t.shape[1])[None] + num_steps
    return jax.lax.stop_gradient(total + weight * jnp.take_along_axis(values, reached, axis=1))


def _later(x: Array, i: int) -> jax.Array:
    """Shifts ``[B, T]`` by i columns towards the beginning, with zeros at the end."""
    return jnp.concatenate([x[:, i:], jnp.zeros_like(x[:, :i])], axis=1)


def cross_entropy(logits: Array, probabilities: Array) -> jax.Array:
    """Returns -sum p log softmax(logits) of ``[..., A]``: ``[...]``, in nats."""
    return -jnp.sum(probabilities * jax.nn.log_softmax(logits), axis=-1)


def two_hot_cross_entropy(logits: Array, target: Array, atoms: Array) -> jax.Array:
    """Returns the cross-entropy ``[...]`` to numbers, each shared among its two nearest atoms so that the mean stays.

    A number outside counts as the outermost atom (Schrittwieser et al. 2020, appendix F).

    Args:
        logits: ``[..., N]``.
        target: ``[...]``.
        atoms: evenly spaced and rising, ``[N]``.
    """
    # rlax.transform_to_2hot adds 1e-5 to the support's width, which moves the mean where atoms are close.
    clipped, num_atoms = jnp.clip(target, atoms[0], atoms[-1]), atoms.shape[0]
    place = (clipped - atoms[0]) / (atoms[-1] - atoms[0]) * (num_atoms - 1)
    distance = jnp.abs(place[..., None] - jnp.broadcast_to(jnp.arange(num_atoms), (*place.shape, num_atoms)))
    probabilities = jax.nn.relu(1.0 - distance)
    return cross_entropy(logits, probabilities)
