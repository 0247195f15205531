"""Policy gradients on segments of experience, over rlax: advantages by GAE, clipped losses, what measures them.

Segments are ``[B, T]`` here, values ``[B, T + 1]``; losses are one number an element ``[B]``, for the caller
to average. Importing rlax is slow: actors do not import this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.losses.library import rlax
from agentkit.types import Array


def generalized_advantages(
    r_t: Array, discount_t: Array, values: Array, has_action_tm1: Array, lambda_: float
) -> jax.Array:
    """Returns advantages ``[B, T]`` by GAE(lambda) (Schulman et al. 2016, eq. 16), in segments of several episodes.

    A_tm1 = delta_t + discount_t lambda A_t with delta_t = r_t + discount_t v_t - v_tm1. The sum stops before a
    row without an action, whose value is bootstrapped from all the same: a truncated episode counts on what
    would have followed and not on the next episode. At the end of the segment it bootstraps, too (partial-
    episode bootstrapping, Pardo et al. 2018). Rows without an action get a number that means nothing.

    Args:
        r_t: rewards ``[B, T]``.
        discount_t: gamma times the environment's discount ``[B, T]``; 0 in rows without an action.
        values: of the rows' observations, and of the one that follows them ``[B, T + 1]``.
        has_action_tm1: see `agentkit.types.has_action`, ``[B, T]``.
        lambda_: from 0 (one-step errors) to 1 (whole returns).
    """
    # What comes after the last row is no part of the sum, whatever lambda is there.
    lambda_t = lambda_ * jnp.concatenate([has_action_tm1[:, 1:], jnp.ones_like(has_action_tm1[:, :1])], axis=1)
    return jax.vmap(rlax.truncated_generalized_advantage_estimation)(r_t, discount_t, lambda_t, values)


def policy_gradient_loss(log_prob: Array, advantage: Array) -> jax.Array:
    """Returns -log pi(a) A, ``[B]``: its gradient is REINFORCE's (Williams 1992; Mnih et al. 2016, section 4).

    Our own, since rlax has it of categorical distributions only. Gradients reach `log_prob` only.
    """
    return -log_prob * jax.lax.stop_gradient(advantage)


def clipped_policy_loss(ratio: Array, advantage: Array, epsilon: float) -> jax.Array:
    """Returns -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A), ``[...]`` (Schulman et al. 2017, eq. 7).

    Args:
        ratio: the policy's probability of the action over the one it was taken with, ``[...]``.
        advantage: ``[...]``.
        epsilon: beyond 1 +- epsilon nothing is gained, so no gradient either.
    """
    advantage = jax.lax.stop_gradient(advantage)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon) * advantage)


def clipped_value_loss(value: Array, old_value: Array, target: Array, epsilon: float | None) -> jax.Array:
    """Returns 0.5 max((v - target)^2, (clip(v, old +- epsilon) - target)^2), ``[B]``, or without `epsilon` the first.

    The clip is of the authors' code (github.com/openai/baselines, ppo2) and not in the paper.
    """
    error = jnp.square(value - target)
    if epsilon is not None:
        clipped = old_value + jnp.clip(value - old_value, -epsilon, epsilon)
        error = jnp.maximum(error, jnp.square(clipped - target))
    return 0.5 * error


def approximate_kl(log_ratio: Array) -> jax.Array:
    """Estimates KL(old, new), ``[B]``: (ratio - 1) - log(ratio), never negative and unbiased (Schulman 2020).

    Args:
        log_ratio: log new(a) - log old(a) of actions drawn from the old policy, ``[B]``.
    """
    return jnp.expm1(log_ratio) - log_ratio


def masked(x: Array, mask: Array) -> jax.Array:
    """Returns `x` times `mask`, and 0 where that is 0 whatever `x` is there: 0 * nan is nan."""
    return jnp.where(mask > 0, x, 0.0) * mask


def masked_mean(x: Array, mask: Array, axis: int | None = None) -> jax.Array:
    """Returns the mean of `x` where `mask` is 1, over an axis or over all; 0 where the mask is 1 nowhere."""
    return jnp.sum(masked(x, mask), axis) / jnp.maximum(jnp.sum(mask, axis), 1.0)


def standardize(x: Array, mask: Array, epsilon: float = 1e-8) -> jax.Array:
    """Subtracts the mean of `x`, and divides by its standard deviation, both where `mask` is 1."""
    centered = x - masked_mean(x, mask)
    return centered / (jnp.sqrt(masked_mean(jnp.square(centered), mask)) + epsilon)


def explained_variance(value: Array, target: Array, mask: Array) -> jax.Array:
    """Returns 1 - Var(target - value) / Var(target) where `mask` is 1, ``[]``: 1 is perfect, 0 a constant's."""

    def variance(x: Array) -> jax.Array:
        return masked_mean(jnp.square(x - masked_mean(x, mask)), mask)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
