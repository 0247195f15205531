"""Losses of agents with a critic of continuous actions, over rlax. Everything is batched, ``[B]``.

Those that learn from data alone stay near the data in three ways: the policy imitates (`regularized_policy_loss`),
imitates the better actions (`expectile_loss`, `exponential_weights`), or values of other actions are pressed down
(`sampled_log_sum_exp`).

Importing rlax is slow (it loads TensorFlow where that is installed): actors do not import this.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import rlax

from agentkit.types import Array


def action_value_error(q_tm1: Array, r_t: Array, discount_t: Array, q_t: Array) -> Array:
    """TD errors ``[B]`` of a policy's action values (Sutton 1988; Lillicrap et al. 2016, eq. 4 and 5).

    r + discount * q(s', policy(s')) - q(s, a). Gradients reach `q_tm1` only.
    """
    return jax.vmap(rlax.td_learning)(q_tm1, r_t, discount_t, q_t)


def smoothed_action(action: Array, noise: Array, max_noise: float) -> Array:
    """Target policy smoothing (Fujimoto et al. 2018, eq. 14): clipped noise on actions ``[..., A]`` in [-1, 1]."""
    return jnp.clip(action + jnp.clip(noise, -max_noise, max_noise), -1.0, 1.0)


def regularized_policy_loss(q: Array, squared_distance: Array, weight: float) -> Array:
    """-lambda q + (pi(s) - a)^2, ``[B]``, lambda = weight / mean |q| (Fujimoto & Gu 2021, 2106.06860, eq. 3 and 5).

    Args:
        q: of the policy's actions, ``[B]``.
        squared_distance: of these from the data's actions, ``[B]``.
        weight: alpha; at 0 this is behavioural cloning. No gradient passes through lambda.
    """
    scale = weight / jnp.maximum(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), 1e-8)
    return squared_distance - scale * q


def expectile_loss(error: Array, expectile: float) -> Array:
    """|tau - 1(u < 0)| u^2, ``[B]`` (Kostrikov et al. 2021, 2110.06169, eq. 4): towards the upper values of a target.

    Args:
        error: u, target less estimate, ``[B]``.
        expectile: tau in (0, 1); at 0.5 the estimate tends to the target's mean, at 1 to its maximum.
    """
    return jnp.where(error < 0, 1.0 - expectile, expectile) * jnp.square(error)


def exponential_weights(advantage: Array, temperature: float, max_weight: float) -> Array:
    """min(exp(advantage / temperature), max_weight), ``[B]``, no gradient (Peng et al. 2019, 1910.00177, eq. 10)."""
    exponent = jnp.minimum(advantage / temperature, jnp.log(max_weight))  # exp would overflow before it is clipped.
    return jax.lax.stop_gradient(jnp.exp(exponent))


def binary_weights(advantage: Array) -> Array:
    """1 where the advantage is above 0, else 0, ``[B]`` (Wang et al. 2020, 2006.15134, eq. 3)."""
    return jax.lax.stop_gradient(advantage > 0).astype(advantage.dtype)


def sampled_log_sum_exp(q: Array, log_density: Array) -> Array:
    """An estimate ``[B]`` of log of the integral of exp q(s, a) over actions a (Kumar et al. 2020, appendix F).

    log (1/N sum_i exp(q_i) / p_i): importance sampling, of actions drawn with density p.

    Args:
        q: of N sampled actions, ``[N, B]``.
        log_density: log p of these, ``[N, B]``.
    """
    return jax.nn.logsumexp(q - jax.lax.stop_gradient(log_density), axis=0) - jnp.log(q.shape[0])
