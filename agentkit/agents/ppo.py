"""PPO: proximal policy optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", 1707.06347).

On-policy: N environments fill segments of T rows, the learner takes each once, makes some epochs of minibatches
over them, and publishes the parameters that choose the next action. Advantages are GAE(lambda) (Schulman et al.
2016).

With a `core_size` policy and value have an LSTM. It begins a segment with the state that the actor had there, and
minibatches are of whole segments.

Deviations from the paper (most are of the authors' code, github.com/openai/baselines, ppo2):
  * Advantages are normalised in each minibatch, gradients clipped to a global norm, weights begin orthogonal,
    those of the policy's last layer small. Policy and value share nothing but the convolutions of images;
    with a `core_size` (the paper has no memory) they share ReLU layers and an LSTM, and are linear in that.
  * Observations and returns are normalised by running statistics, which are learned and published with the
    parameters. An update uses those of the acting policy for observations, and takes in its data afterwards.
  * Truncated episodes and unfinished segments bootstrap.
  * An episode's final observation takes one of the T rows; only its value is of use.
  * Gaussian actions are clipped to the bounds on their way to the environment; the densities are of the
    unclipped ones. The standard deviation does not depend on the observation.
  * Optional: a clipped value loss, an end of the epochs by the KL, a learning rate that falls. The clip stays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents.common.ranges import Count, Positive
from agentkit.agents.on_policy import (
    OnPolicyConfig,
    Progress,
    Rows,
    RowsLoss,
    advantages,
    agent_of_update,
    learn_from_segments,
)
from agentkit.agents.policy_steps import gradient_step, run_epochs
from agentkit.learning import Update, adam, linear_decay


@dataclasses.dataclass(frozen=True)
class Config(OnPolicyConfig):
    """Settings of PPO, beside those of `OnPolicyConfig`.

    Attributes:
        core_size: units of an LSTM behind `hidden_sizes`, which policy and value then share; None for no memory.
        num_epochs: passes over the data of an update.
        num_minibatches: gradient steps per epoch; divides batch_size * segment_length, with a core_size batch_size.
        clip_epsilon: the ratio's clip (paper, eq. 7).
        value_clip: clip of the value's move from before the update, in units of the value network; None for none.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus (paper, eq. 9).
        target_kl: the epochs end where a minibatch's KL from the acting policy is above this; None for never.
        anneal_steps: rows (steps, in all environments) in which the learning rate falls linearly to 0; None: never.
    """

    core_size: Count | None = None
    num_epochs: Count = 10
    num_minibatches: Count = 4
    clip_epsilon: Positive = 0.2
    value_clip: Positive | None = None
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    target_kl: Positive | None = None
    anneal_steps: Count | None = None


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.PolicyValue:
    """Tanh layers for the policy and others for the value; with a core_size ReLU layers and an LSTM for both."""
    if config.core_size is None:
        return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std)
    return nets.recurrent_policy_value(environment_spec, config.hidden_sizes, config.initial_std, config.core_size)


def make_loss(networks: nets.PolicyValue, config: Config) -> RowsLoss:
    """The clipped surrogate, value and entropy (paper, eq. 9)."""

    def loss(params: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        distribution, value = networks.apply(params, rows.observation, rows.memory)
        log_ratio = distribution.log_prob(rows.sampled.sample) - rows.sampled.log_prob
        # Of the zeros in rows without an action any number may come, also one whose exponential overflows.
        log_ratio = jnp.where(rows.mask > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        policy_losses = losses.clipped_policy_loss(ratio, advantages(config, rows), config.clip_epsilon)
        value_losses = losses.clipped_value_loss(value, rows.old_value, rows.target, config.value_clip)
        means = {
            "policy_loss": policy_losses,
            "value_loss": value_losses,
            "entropy": distribution.entropy(),
            "kl": losses.approximate_kl(log_ratio),
            "clipped": (jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(jnp.float32),
        }
        metrics = {name: losses.masked_mean(x, rows.mask) for name, x in means.items()}
        total = metrics["policy_loss"] + config.value_cost * metrics["value_loss"]
        return total - config.entropy_cost * metrics["entropy"], metrics

    return loss


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """All epochs over the segments of one batch, as one update (paper, algorithm 1)."""
    optimizer = adam(1.0, config.max_grad_norm)
    loss = make_loss(networks, config)

    def improve(params: Any, opt_state: Any, rows: Rows, progress: Progress) -> tuple[Any, Any, dict[str, jax.Array]]:
        learning_rate = linear_decay(config.learning_rate, progress.num_rows, config.anneal_steps)
        (params, opt_state), metrics = run_epochs(
            gradient_step(loss, optimizer, learning_rate),
            (params, opt_state),
            rows,
            progress.key,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            stop=None if config.target_kl is None else lambda metrics: metrics["kl"] > config.target_kl,
        )
        return params, opt_state, {**metrics, "learning_rate": learning_rate}

    return learn_from_segments(networks, config, optimizer.init, improve)


make_agent = agent_of_update(Config, make_networks, make_update)
