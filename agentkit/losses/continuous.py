"""Losses of agents with a critic of continuous actions, over rlax. Everything is batched, ``[B]``.

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


def categorical_target(r_t: Array, discount_t: Array, logits_t: Array, atoms: Array) -> Array:
    """The distribution of r + discount * Z on `atoms`: probabilities ``[B, N]``.

    Z has `logits_t` on the same atoms. What falls between two atoms is shared among them so that the
    mean stays, what falls outside goes to the outermost (Bellemare et al. 2017, eq. 7).

    Args:
        r_t: rewards ``[B]``.
        discount_t: what multiplies Z, ``[B]``.
        logits_t: ``[B, N]``.
        atoms: the values that Z can take, rising, float32 ``[N]``.
    """

    def project(r: Array, discount: Array, logits: Array) -> Array:
        # Where nothing is bootstrapped, the rounding of probabilities shall not depend on what comes next, either.
        logits = jnp.where(discount == 0, 0.0, logits)
        return rlax.categorical_l2_project(r + discount * atoms, jax.nn.softmax(logits), atoms)

    return jax.vmap(project)(r_t, discount_t, logits_t)


def categorical_td_loss(logits_tm1: Array, r_t: Array, discount_t: Array, logits_t: Array, atoms: Array) -> Array:
    """KL divergences ``[B]`` of a categorical critic from its target (Bellemare et al. 2017, algorithm 1).

    The paper's cross-entropy less the target's entropy: the same gradient, and zero where the critic
    agrees with its target, so that it serves as a priority (Hessel et al. 2018, section 3). Gradients
    reach `logits_tm1` only. Arguments as for `categorical_target`.
    """
    target = jax.lax.stop_gradient(categorical_target(r_t, discount_t, logits_t, atoms))
    log_target = jnp.log(jnp.where(target > 0, target, 1.0))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(logits_tm1)), axis=-1)
