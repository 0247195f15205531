"""The step on policy and temperature that SAC's descendants take as SAC does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax

from agentkit.learning import objective, optimizer_step
from agentkit.types import Params, ReplaySample, Transition


class SoftPolicyStep(NamedTuple):
    """Holds what a step on policy and temperature changed.

    Attributes:
        policy: parameters.
        policy_opt: the state of its optimiser.
        log_alpha: logarithm of the temperature, ``[]``.
        alpha_opt: the state of its optimiser.
        metrics: ``policy_loss`` and ``entropy``, ``[]`` each.
    """

    policy: Params
    policy_opt: optax.OptState
    log_alpha: jax.Array
    alpha_opt: optax.OptState
    metrics: dict[str, jax.Array]


def soft_policy_step(
    losses: Any,
    optimizers: Mapping[str, optax.GradientTransformation],
    learn_temperature: bool,
    state: Any,
    batch: ReplaySample[Transition],
    key: jax.Array,
) -> SoftPolicyStep:
    """Takes a gradient step on the policy, and on the temperature by the entropy that was met (Haarnoja et al. 2018).

    Args:
        losses: its ``policy`` and ``temperature`` are those of `agents.sac.Losses`.
        optimizers: of ``"policy"`` and ``"temperature"``.
        learn_temperature: False leaves the temperature as it is.
        state: has policy, log_alpha and opt_states, as `agents.sac.State` has.
        batch: of `Transition`s ``[B, ...]``.
        key: of the actions that are drawn.
    """
    policy_opt, _, alpha_opt = state.opt_states
    policy_grads, output = jax.grad(objective(losses.policy, metrics=["entropy"]), has_aux=True)(
        state.policy, state, batch, key
    )
    entropy = output.metrics["entropy"]
    policy, policy_opt = optimizer_step(optimizers["policy"], policy_grads, state.policy, policy_opt)
    log_alpha = state.log_alpha
    if learn_temperature:
        alpha_grads, _ = jax.grad(objective(losses.temperature), has_aux=True)(log_alpha, state, batch, entropy)
        log_alpha, alpha_opt = optimizer_step(optimizers["temperature"], alpha_grads, log_alpha, alpha_opt)
    metrics = {"policy_loss": output.loss, "entropy": entropy}
    return SoftPolicyStep(policy, policy_opt, log_alpha, alpha_opt, metrics)
