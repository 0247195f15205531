"""Losses on the distributions of returns, over rlax. Everything is batched.

Importing rlax is slow: actors do not import this.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax

from agentkit.losses.library import rlax
from agentkit.types import Array


def categorical_target(r_t: Array, discount_t: Array, logits_t: Array, atoms: Array) -> jax.Array:
    """Projects the distribution of r + discount * Z on `atoms`, and returns its probabilities ``[B, N]``.

    Z has `logits_t` on the same atoms. A return between two atoms is shared among them so that the mean stays; one
    outside goes to the outermost (Bellemare et al. 2017, eq. 7).

    Args:
        r_t: rewards ``[B]``.
        discount_t: what multiplies Z, ``[B]``.
        logits_t: ``[B, N]``.
        atoms: the values that Z can take, rising, float32 ``[N]``.
    """

    def project(r: Array, discount: Array, logits: Array) -> jax.Array:
        # Where nothing is bootstrapped, the rounding of probabilities shall not depend on what comes next, either.
        logits = jnp.where(discount == 0, 0.0, logits)
        return rlax.categorical_l2_project(r + discount * atoms, jax.nn.softmax(logits), atoms)

    return jax.vmap(project)(r_t, discount_t, logits_t)


def categorical_td_loss(logits_tm1: Array, r_t: Array, discount_t: Array, logits_t: Array, atoms: Array) -> jax.Array:
    """Returns the KL divergences ``[B]`` of a categorical critic from its target (Bellemare et al. 2017, algorithm 1).

    The paper's cross-entropy less the target's entropy: the same gradient, and zero where the critic
    agrees with its target, so that it serves as a priority (Hessel et al. 2018, section 3; decision 30).
    Gradients reach `logits_tm1` only. Arguments as for `categorical_target`.
    """
    target = jax.lax.stop_gradient(categorical_target(r_t, discount_t, logits_t, atoms))
    log_target = jnp.log(jnp.where(target > 0, target, 1.0))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(logits_tm1)), axis=-1)


def categorical_q_learning_loss(
    logits_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    logits_target_t: Array,
    q_selector_t: Array,
    atoms: Array,
) -> jax.Array:
    """Returns the KL divergences ``[B]`` of Z(s, a) from r + discount * Z_target(s', a*).

    It is `categorical_td_loss` for the best next action a* (Bellemare et al. 2017, algorithm 1).

    Args:
        logits_tm1: of Z(s, .), ``[B, A, N]``; gradients reach these only.
        a_tm1: int ``[B]``.
        r_t: ``[B]``.
        discount_t: what multiplies Z_target, ``[B]``.
        logits_target_t: of Z_target(s', .), ``[B, A, N]``.
        q_selector_t: values whose argmax is a*, ``[B, A]``: the means of Z_target, or for double Q-learning
            (van Hasselt et al. 2016) those of the online network.
        atoms: the values that Z can take, rising, ``[N]``.
    """
    a_t = jnp.argmax(q_selector_t, axis=-1)
    taken, best = _select_action(logits_tm1, a_tm1), _select_action(logits_target_t, a_t)  # [B, N]
    # Where nothing follows, all distributions have the same target; this makes it so to the last bit.
    best = jnp.where(discount_t[:, None] == 0, 0.0, best)
    return categorical_td_loss(taken, r_t, discount_t, best, atoms)


def _select_action(values: Array, action: Array) -> jax.Array:
    """Returns the rows ``[B, N]`` of ``[B, A, N]`` that belong to `action` ``[B]``."""
    return jnp.take_along_axis(values, action[:, None, None], axis=1)[:, 0]


def quantile_q_learning_loss(
    quantiles_tm1: Array,
    taus_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    quantiles_target_t: Array,
    quantiles_selector_t: Array,
    huber_delta: float,
) -> jax.Array:
    """Returns quantile regression losses ``[B]`` to r + discount * Z_target(s', a*), a* having the greatest mean.

    The sum over N quantiles of the mean over N' targets of |tau - 1(u < 0)| L(u) / `huber_delta`, u being target
    less quantile and L the Huber loss (Dabney et al. 2018, 1806.06923, eq. 3; at `huber_delta` 1 this is also
    Dabney et al. 2018, 1710.10044, eq. 10). At 0 it is |tau - 1(u < 0)| |u| (the latter's eq. 8).

    Args:
        quantiles_tm1: of Z(s, .), ``[B, N, A]``; gradients reach these only.
        taus_tm1: the fractions they are quantiles at, ``[B, N]``.
        a_tm1: int ``[B]``.
        r_t: ``[B]``.
        discount_t: what multiplies Z_target, ``[B]``.
        quantiles_target_t: of Z_target(s', .), ``[B, N', A]``.
        quantiles_selector_t: the quantiles that choose a*, ``[B, K, A]``.
        huber_delta: kappa, where the loss turns from squared to linear, >= 0.
    """
    loss = functools.partial(rlax.quantile_q_learning, huber_param=huber_delta)
    per_item = jax.vmap(loss)(quantiles_tm1, taus_tm1, a_tm1, r_t, discount_t, quantiles_selector_t, quantiles_target_t)
    return per_item / huber_delta if huber_delta > 0 else per_item


def quantile_huber_loss(quantiles: Array, fractions: Array, targets: Array) -> jax.Array:
    """Returns quantile regression losses ``[B]``: the mean over quantiles and targets of |tau - 1(u < 0)| L(u).

    u is target less quantile, and L the Huber loss, which turns linear at 1 (Dabney et al. 2018, 1710.10044, eq. 10;
    Kuznetsov et al. 2020, 2005.04269, whose mean this is).

    Args:
        quantiles: ``[B, M]``; gradients reach these, and `targets` if they are not stopped.
        fractions: tau, at which they are quantiles, ``[M]``.
        targets: samples of the distribution, equally likely, ``[B, K]``.
    """
    errors = targets[:, None, :] - quantiles[:, :, None]  # [B, M, K]
    weights = jnp.abs(fractions[None, :, None] - (errors < 0))
    return jnp.mean(weights * optax.huber_loss(errors), axis=(1, 2))
