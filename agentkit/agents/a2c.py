"""A2C: advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", 1602.01783).

A3C in step: N environments fill short segments together, and each batch of them gives one gradient step on policy,
value and entropy, whose parameters choose the next action.

Deviations from the paper:
  * Synchronous: one learner and one batch of all environments, instead of a thread for each that overwrites shared
    parameters.
  * Advantages are GAE(lambda) (Schulman et al. 2016); with `gae_lambda` 1 they are the paper's, of returns to the
    end of the segment.
  * Observations and returns are normalised by running statistics, gradients clipped to a global norm. Policy and
    value share nothing but the convolutions of images. The standard deviation of Gaussian actions does not depend on
    the observation; they are clipped to the bounds on their way to the environment.
  * RMSProp's mean of squares begins at 1, which keeps the first steps small (as in github.com/openai/baselines, a2c).
    Its epsilon, inside the root, is 1e-10: clipped to a norm of 0.5, gradients of 10,000 parameters are 5e-3 each in
    mean, and beside baselines' 1e-5 the squares of small ones do not count. The learning rate stays, unless
    `anneal_steps` says when it reaches 0.
  * Truncated episodes bootstrap. An episode's final observation takes one of the T rows; only its value is of use.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents.common.ranges import Count, Fraction, Positive
from agentkit.agents.on_policy import (
    OnPolicyConfig,
    Progress,
    Rows,
    RowsLoss,
    advantages,
    agent_of_update,
    learn_from_segments,
)
from agentkit.learning import Update, global_norm, linear_decay, optimizer_step


@dataclasses.dataclass(frozen=True)
class Config(OnPolicyConfig):
    """Settings of A2C, beside those of `OnPolicyConfig`.

    Attributes:
        value_cost: weight of the value loss.
        entropy_cost: beta, weight of the entropy bonus.
        rms_decay: of RMSProp's mean of squared gradients.
        rms_epsilon: added to that mean.
        anneal_steps: rows (steps, in all environments) in which the learning rate falls linearly to 0; None: never.
    """

    segment_length: Count = 5
    learning_rate: float = 7e-4
    normalize_advantages: bool = False
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    rms_decay: Fraction = 0.99
    rms_epsilon: Positive = 1e-10
    anneal_steps: Count | None = None


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.PolicyValue:
    """Tanh layers for the policy and others for the value."""
    return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std)


def make_loss(networks: nets.PolicyValue, config: Config) -> RowsLoss:
    """Of policy, value and entropy (paper, algorithm S3, and section 4 for the entropy)."""

    def loss(params: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        policy, value = networks.apply(params, rows.observation)
        log_prob = policy.log_prob(rows.sampled.sample)
        policy_losses = losses.policy_gradient_loss(log_prob, advantages(config, rows))
        policy_loss = losses.masked_mean(policy_losses, rows.mask)
        value_loss = losses.masked_mean(0.5 * jnp.square(value - rows.target), rows.mask)
        entropy = losses.masked_mean(policy.entropy(), rows.mask)
        total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
        return total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    return loss


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """One step on all rows of a batch of segments."""
    import optax  # Not at import time: actors load this file, and optimise nothing.

    optimizer = optax.rmsprop(1.0, decay=config.rms_decay, eps=config.rms_epsilon, initial_scale=1.0)
    if config.max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)
    optimizer = optax.flatten(optimizer)
    gradient = jax.grad(make_loss(networks, config), has_aux=True)

    def improve(params: Any, opt_state: Any, rows: Rows, progress: Progress) -> tuple[Any, Any, dict[str, jax.Array]]:
        grads, metrics = gradient(params, rows)
        metrics |= {
            "grad_norm": global_norm(grads),
            "learning_rate": linear_decay(config.learning_rate, progress.num_rows, config.anneal_steps),
        }
        params, opt_state = optimizer_step(optimizer, grads, params, opt_state, metrics["learning_rate"])
        return params, opt_state, metrics

    return learn_from_segments(networks, config, optimizer.init, improve)


make_agent = agent_of_update(Config, make_networks, make_update)
