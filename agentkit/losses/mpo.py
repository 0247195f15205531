"""Maximum a posteriori policy optimisation, over rlax: weights of sampled actions, and a policy's fit to them.

Importing rlax is slow: actors do not import this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.losses.library import rlax
from agentkit.types import Array


class MPODuals(NamedTuple):
    """Holds the logarithms of the Lagrange multipliers, which are learned.

    Attributes:
        log_temperature: of eta, for the bound on the weights, ``[]``.
        log_alpha_mean: for those on the means' KL, ``[A]``.
        log_alpha_std: for those on the deviations' KL, ``[A]``.
        log_penalty_temperature: of the eta that weighs actions by how far they are out of bounds, ``[]``.
    """

    log_temperature: Array
    log_alpha_mean: Array
    log_alpha_std: Array
    log_penalty_temperature: Array


class MPOConstraints(NamedTuple):
    """Holds the bounds of the KL divergences, in nats.

    Attributes:
        weights: epsilon, for the weights of samples, by their KL from equal ones.
        mean: of each dimension's mean.
        std: of each dimension's standard deviation.
        penalty: as `weights`, for the weights by the action penalty; None for no such penalty.
    """

    weights: float
    mean: float
    std: float
    penalty: float | None


class MPOStats(NamedTuple):
    """Holds statistics of the loss for logging, ``[]`` each, means over the batch.

    Attributes:
        policy_loss: minus the weighted log-probabilities.
        weights_kl: of the samples' weights from equal ones, which `MPOConstraints.weights` bounds.
        mean_kl: sum over dimensions.
        std_kl: sum over dimensions.
    """

    policy_loss: Array
    weights_kl: Array
    mean_kl: Array
    std_kl: Array


def mpo_loss(
    policy: Any, target: Any, samples: Array, q_values: Array, duals: MPODuals, constraints: MPOConstraints
) -> tuple[Array, MPOStats]:
    """Returns the loss ``[]`` of a diagonal Gaussian policy and of all duals (Abdolmaleki et al. 2018, 1812.02256).

    E-step: samples of the target policy are weighted by softmax(q / eta), eta minimising the dual (1806.06920, eq. 9).
    M-step: the weighted log-likelihood is climbed twice, by the mean with the target's deviation and by the deviation
    with the target's mean, each less its multiplier times its KL from the target policy, and multipliers rise while
    that is above its bound. Each dimension is bounded alone.

    With a penalty the samples' distance from [-1, 1] is a second objective with an eta of its own, whose weights are
    added (Abdolmaleki et al. 2020, 2005.07513).

    Args:
        policy: a `networks.DiagonalNormal` of ``[B, A]``; gradients reach it and the duals.
        target: the lagged policy's, likewise.
        samples: of the lagged policy, ``[S, B, A]``.
        q_values: of them, ``[S, B]``.
        duals: the multipliers.
        constraints: bounds of the KL divergences.
    """
    target, samples, q_values = jax.lax.stop_gradient((target, samples, q_values))
    moved, widened = policy._replace(log_std=target.log_std), policy._replace(mean=target.mean)
    log_prob = jax.vmap(lambda sample: moved.log_prob(sample) + widened.log_prob(sample))(samples)  # [S, B]
    mean_kl, std_kl = _kl_by_dimension(target, moved), _kl_by_dimension(target, widened)  # [B, A]
    loss, outputs = rlax.mpo_loss(
        log_prob,
        q_values,
        rlax.LagrangePenalty(duals.log_temperature, constraints.weights),
        [
            (mean_kl, rlax.LagrangePenalty(duals.log_alpha_mean[None], constraints.mean, per_dimension=True)),
            (std_kl, rlax.LagrangePenalty(duals.log_alpha_std[None], constraints.std, per_dimension=True)),
        ],
        projection_operator=jnp.exp,
    )
    policy_loss = outputs.policy_loss
    if constraints.penalty is not None:
        cost = -jnp.sqrt(jnp.sum(jnp.square(samples - jnp.clip(samples, -1.0, 1.0)), axis=-1))  # [S, B]
        constraint = rlax.LagrangePenalty(duals.log_penalty_temperature, constraints.penalty)
        dual_loss, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(cost, constraint, jnp.exp)
        penalty_loss = -jnp.sum(jax.lax.stop_gradient(weights) * log_prob, axis=0)
        policy_loss = policy_loss + penalty_loss
        loss = loss + dual_loss + penalty_loss
    stats = MPOStats(
        policy_loss=jnp.mean(policy_loss),
        weights_kl=jnp.mean(_kl_from_uniform(outputs.normalized_weights)),
        mean_kl=jnp.mean(jnp.sum(mean_kl, axis=-1)),
        std_kl=jnp.mean(jnp.sum(std_kl, axis=-1)),
    )
    return jnp.mean(loss), stats


def _kl_by_dimension(p: Any, q: Any) -> jax.Array:
    """Returns KL(p, q) of diagonal Gaussians, ``[B, A]``."""
    squares = jnp.exp(2.0 * (p.log_std - q.log_std)) + jnp.square((p.mean - q.mean) * jnp.exp(-q.log_std))
    return 0.5 * squares - 0.5 + q.log_std - p.log_std


def _kl_from_uniform(weights: Array) -> jax.Array:
    """Returns the KL ``[B]`` from uniform weights of `weights` ``[S, B]``, which sum to 1."""
    log_weights = jnp.log(jnp.where(weights > 0, weights, 1.0))
    return jnp.sum(weights * log_weights, axis=0) + jnp.log(weights.shape[0])
