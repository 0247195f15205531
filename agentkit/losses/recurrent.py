"""Losses on sequences of experience that a recurrent network is unrolled over, on top of rlax.

Sequences are ``[B, T]``, values of the rows' successors included ``[B, T + 1]``. Importing rlax is slow: actors do
not import this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.losses.library import rlax
from agentkit.losses.policy_gradient import masked
from agentkit.types import Array, has_action

_EPSILON = 1e-3


def signed_hyperbolic(x: Array) -> jax.Array:
    """Returns h(x) = sgn(x) (sqrt(|x| + 1) - 1) + 1e-3 x (Pohlen et al. 2018, 1805.11593, prop. A.2)."""
    return rlax.signed_hyperbolic(x, _EPSILON)


def signed_parabolic(x: Array) -> jax.Array:
    """Inverts `signed_hyperbolic` (Pohlen et al. 2018, 1805.11593, prop. A.2).

    It is rlax's `signed_parabolic` with the root's numerator made rational: rlax's subtracts numbers near 500 from each
    other, which leaves errors of 1e-4 in float32.
    """
    y = 1.0 + _EPSILON + jnp.abs(x)
    root = 2.0 * y / (1.0 + jnp.sqrt(1.0 + 4.0 * _EPSILON * y))
    return jnp.sign(x) * (root - 1.0) * (root + 1.0)


_RESCALED, _PLAIN = rlax.TxPair(signed_hyperbolic, signed_parabolic), rlax.IDENTITY_PAIR


def loss_mask(start_of_episode: Array, burn_in: int) -> jax.Array:
    """Marks rows that a loss may count, float32 ``[B, T]``: 1 with an action and with a state to be trusted.

    Such is a state after `burn_in` rows, or after an episode's start (which needs no burn-in: its state is known).

    Args:
        start_of_episode: of the rows and of the one after them, bool ``[B, T + 1]``.
        burn_in: rows.
    """
    late = jnp.arange(start_of_episode.shape[1] - 1) >= burn_in
    exact = jax.lax.cummax(start_of_episode[:, :-1].astype(jnp.int32), axis=1) > 0
    return has_action(start_of_episode) * (exact | late[None])


def n_step_double_q_learning_error(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_target_t: Array,
    q_selector_t: Array,
    has_action_tm1: Array,
    *,
    n: int,
    rescaled: bool,
) -> jax.Array:
    """Returns TD errors ``[B, T]`` of n-step double Q-learning over sequences (Kapturowski et al. 2019, section 2.3).

    h(r_t + ... + discount^(n-1) r + discount^n h^-1(q_target(s', argmax_a q_selector(s', a)))) - q(s, a), with h
    `signed_hyperbolic`, or the identity. The sum ends sooner where the sequence does, and before a row without an
    action, whose value it bootstraps from: so a truncated episode counts on what would have followed and not on the
    next episode. Rows without an action get a number that means nothing.

    Args:
        q_tm1: ``[B, T, A]``; gradients reach these only.
        a_tm1: int ``[B, T]``.
        r_t: rewards ``[B, T]``.
        discount_t: gamma times the environment's discount ``[B, T]``; 0 in rows without an action.
        q_target_t: of the rows after, ``[B, T, A]``.
        q_selector_t: likewise.
        has_action_tm1: see `has_action`, ``[B, T]``.
        n: rewards in a sum at most, >= 1.
        rescaled: whether the values are h of returns.
    """
    pair = _RESCALED if rescaled else _PLAIN
    v_t = _chosen(q_target_t, jnp.argmax(q_selector_t, axis=-1))
    returns = n_step_returns(r_t, discount_t, pair.apply_inv(v_t), has_action_tm1, n=n)
    return jax.lax.stop_gradient(pair.apply(returns)) - _chosen(q_tm1, a_tm1)


def n_step_returns(r_t: Array, discount_t: Array, v_t: Array, has_action_tm1: Array, *, n: int) -> jax.Array:
    """Returns n rewards and the discounted value after them ``[B, T]``, r_t + ... + discount^(n-1) r + discount^n v.

    The sum ends sooner where the sequence does, and before a row without an action, whose value it bootstraps from.
    Rows without an action get a number that means nothing.

    Args:
        r_t: rewards ``[B, T]``.
        discount_t: gamma times the environment's discount ``[B, T]``; 0 in rows without an action.
        v_t: values of the rows after, ``[B, T]``.
        has_action_tm1: see `has_action`, ``[B, T]``.
        n: rewards in a sum at most, >= 1.
    """

    def sums(r: Array, discount: Array, v: Array, lambda_: Array) -> jax.Array:
        return rlax.n_step_bootstrapped_returns(r, discount, v, n, lambda_)

    returns: jax.Array = jax.vmap(sums)(r_t, discount_t, v_t, _goes_on(has_action_tm1))
    return returns


def lambda_returns(r_t: Array, discount_t: Array, v_t: Array, has_action_tm1: Array, lambda_: float) -> jax.Array:
    """Returns lambda returns ``[B, T]``, r_t + discount_t ((1 - lambda) v_t + lambda return_t) (Sutton & Barto 2018).

    They end where the sequence does, and before a row without an action, whose value they bootstrap from. Rows without
    an action get a number that means nothing. Arguments are those of `n_step_returns`, but for `lambda_` in [0, 1].
    """
    goes_on = _goes_on(has_action_tm1)
    returns: jax.Array = jax.vmap(rlax.lambda_returns)(r_t, discount_t, v_t, lambda_ * goes_on)
    return returns


def _goes_on(has_action_tm1: Array) -> jax.Array:
    """Returns 0 where a row without an action follows, else 1, ``[B, T]``; what comes after the last row is no part."""
    return jnp.concatenate([has_action_tm1[:, 1:], jnp.ones_like(has_action_tm1[:, :1])], axis=1)


def _chosen(values: Array, action: Array) -> jax.Array:
    """Returns the values ``[B, T]`` of `action` ``[B, T]``, out of ``[B, T, A]``."""
    return jnp.take_along_axis(values, action[..., None].astype(jnp.int32), axis=-1)[..., 0]


def sequence_priorities(error: Array, mask: Array, eta: float) -> jax.Array:
    """Returns priorities ``[B]``, eta max |error| + (1 - eta) mean |error| (Kapturowski et al. 2019, section 2.3).

    Both are over the rows where `mask` is 1; 0 where there is none, since such a sequence has no loss.

    Args:
        error: ``[B, T]``.
        mask: ``[B, T]``.
        eta: in [0, 1].
    """
    size = masked(jnp.abs(error), mask)
    mean = jnp.sum(size, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)
    return eta * jnp.max(size, axis=1) + (1.0 - eta) * mean
