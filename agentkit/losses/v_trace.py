"""V-trace: targets and advantages of segments that another policy made, over rlax."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit.losses.library import rlax
from agentkit.types import Array


class VTrace(NamedTuple):
    """Holds target and advantage of each row, by `vtrace`; no gradient goes through them.

    Attributes:
        target: for the values, ``[B, T]``.
        advantage: for the policy's gradient, ``[B, T]``.
    """

    target: Array
    advantage: Array


def vtrace(
    r_t: Array,
    discount_t: Array,
    values: Array,
    log_ratio_tm1: Array,
    has_action_tm1: Array,
    *,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    policy_rho_clip: float = 1.0,
) -> VTrace:
    """Returns V-trace targets and advantages of rows of several episodes (Espeholt et al. 2018, eq. 1, section 4.2).

    v_s = V(s) + sum_t (prod_i<t discount_i c_i) rho_t (r_t + discount_t V(t + 1) - V(t)), where rho_t is
    min(rho_clip, ratio_t) and c_i is lambda min(1, ratio_i); advantages are min(policy_rho_clip, ratio_s)
    (r_s + discount_s (lambda v_{s+1} + (1 - lambda) V(s + 1)) - V(s)). The sum ends at a row without an action, whose
    value is bootstrapped from: a truncated episode counts on what would have followed and not on the next episode. At
    the end of the segment it bootstraps, too. A row without an action has its value as target,
    and an advantage that means nothing.

    Args:
        r_t: rewards ``[B, T]``.
        discount_t: gamma times the environment's discount ``[B, T]``; 0 in rows without an action.
        values: of the rows' observations, and of the one that follows them ``[B, T + 1]``.
        log_ratio_tm1: log pi(a|s) - log mu(a|s), mu being the policy that acted, ``[B, T]``.
        has_action_tm1: see `agentkit.types.has_action`, ``[B, T]``.
        lambda_: from 0 (one-step targets) to 1 (the paper's eq. 1; its remark 2 has the others).
        rho_clip: the largest ratio in an error: of which policy the values are.
        policy_rho_clip: the largest ratio in an advantage.
    """
    values, log_ratio_tm1 = jax.lax.stop_gradient((values, log_ratio_tm1))
    # Of the zeros that stand for an action any ratio may come, also an infinite one.
    ratio = jnp.exp(jnp.where(has_action_tm1 > 0, log_ratio_tm1, -jnp.inf))
    correct = functools.partial(
        rlax.vtrace_td_error_and_advantage,
        lambda_=lambda_,
        clip_rho_threshold=rho_clip,
        clip_pg_rho_threshold=policy_rho_clip,
        stop_target_gradients=False,
    )
    output = jax.vmap(correct)(values[:, :-1], values[:, 1:], r_t, discount_t, ratio)
    return VTrace(values[:, :-1] + output.errors, output.pg_advantage)
