"""Losses of discrete actions and their values, over rlax. Everything is batched: q is ``[B, A]``, the rest ``[B]``.

Importing rlax is slow: actors do not import this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.losses.library import rlax
from agentkit.types import Array


def q_learning_error(q_tm1: Array, a_tm1: Array, r_t: Array, discount_t: Array, q_target_t: Array) -> jax.Array:
    """Returns the TD errors ``[B]`` of Q-learning (Watkins & Dayan 1992; target network: Mnih et al. 2015, eq. 2).

    r + discount * max_a q_target(s', a) - q(s, a). Gradients reach `q_tm1` only.
    """
    return jax.vmap(rlax.q_learning)(q_tm1, a_tm1, r_t, discount_t, q_target_t)


def double_q_learning_error(
    q_tm1: Array, a_tm1: Array, r_t: Array, discount_t: Array, q_target_t: Array, q_selector_t: Array
) -> jax.Array:
    """Returns the TD errors ``[B]`` of double Q-learning (van Hasselt et al. 2016, eq. 4).

    r + discount * q_target(s', argmax_a q_selector(s', a)) - q(s, a).
    """
    return jax.vmap(rlax.double_q_learning)(q_tm1, a_tm1, r_t, discount_t, q_target_t, q_selector_t)


def munchausen_error(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_target_tm1: Array,
    q_target_t: Array,
    *,
    temperature: float,
    munchausen_coefficient: float,
    log_policy_clip: float,
) -> jax.Array:
    """Returns the TD errors ``[B]`` of Munchausen-DQN (Vieillard et al. 2020, 2007.14430, eq. 2).

    With pi = softmax(q_target / tau): the reward gains alpha * clip(tau log pi(a|s), l_0, 0), and the target bootstraps
    from the soft value, the mean over pi(.|s') of q_target(s', .) - tau log pi(.|s').

    Args:
        q_tm1: ``[B, A]``; gradients reach these only.
        a_tm1: int ``[B]``.
        r_t: ``[B]``, of one step: the bonus is for one action.
        discount_t: what multiplies the soft value, ``[B]``.
        q_target_tm1: the target network's values before the step, ``[B, A]``.
        q_target_t: and after it, ``[B, A]``.
        temperature: tau, > 0.
        munchausen_coefficient: alpha.
        log_policy_clip: l_0, at most 0.
    """
    scaled_log_pi_tm1 = temperature * jax.nn.log_softmax(q_target_tm1 / temperature)  # [B, A]
    bonus = munchausen_coefficient * jnp.clip(_chosen(scaled_log_pi_tm1, a_tm1), log_policy_clip, 0.0)  # [B]
    soft_value = temperature * jax.nn.logsumexp(q_target_t / temperature, axis=-1)  # the same mean, [B]
    target = jax.lax.stop_gradient(r_t + bonus + discount_t * soft_value)
    return target - _chosen(q_tm1, a_tm1)


def _chosen(values: Array, action: Array) -> jax.Array:
    """Returns the values ``[B]`` of `action` ``[B]``, out of ``[B, A]``."""
    return jnp.take_along_axis(values, action[:, None], axis=-1)[:, 0]


def huber(error: Array, delta: float | None) -> jax.Array:
    """Returns 0.5 e^2 near zero, delta (|e| - 0.5 delta) beyond `delta` (Huber 1964); 0.5 e^2 everywhere for None."""
    if delta is None:
        return 0.5 * jnp.square(error)
    return rlax.huber_loss(error, delta)


def action_cross_entropy(logits: Array, action: Array) -> jax.Array:
    """Returns -log softmax(logits)[action], ``[B]``.

    Args:
        logits: ``[B, A]``.
        action: int ``[B]``.
    """
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None].astype(jnp.int32), axis=-1)[:, 0]


def cql_penalty(q: Array, action: Array) -> jax.Array:
    """Returns log sum_a exp q(s, a) - q(s, action), ``[B]``, of discrete actions (Kumar et al. 2020, eq. 4).

    Args:
        q: ``[B, A]``.
        action: the data's, int ``[B]``.
    """
    return action_cross_entropy(q, action)


def bcq_action_mask(logits: Array, threshold: float) -> jax.Array:
    """Marks actions whose probability is at least `threshold` times the largest, bool ``[B, A]``.

    The likeliest action is always among them (Fujimoto et al. 2019, 1910.01708, eq. 10, discrete BCQ).

    Args:
        logits: of the behaviour that made the data, ``[B, A]``.
        threshold: tau, from 0 (any action) to 1 (the likeliest alone).
    """
    log_ratio = logits - jnp.max(logits, axis=-1, keepdims=True)
    return jnp.exp(log_ratio) >= threshold
