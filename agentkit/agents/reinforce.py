"""REINFORCE with a baseline (Williams 1992, "Simple Statistical Gradient-Following Algorithms", no arXiv number).

Each action becomes likelier by how much the whole return that followed it exceeds what a value network expected of
its observation. One step on the policy for each batch of segments; the value is fitted to the same returns.

Deviations from the paper:
  * The baseline is a learned value of the observation, where the paper has a running mean of rewards.
  * Actions are weighed by the rewards that came after them, discounted, and not by all of an episode's.
  * Where a segment ends in mid-episode or an episode is truncated, the value of the next observation stands for the
    rest of the return (partial-episode bootstrapping, Pardo et al. 2018). With `gae_lambda` below 1 every later
    value has a share in the return: less noise, and the critic's bias.
  * Adam, and one step on the mean over many episodes at once, with clipped gradients; normalised advantages,
    observations and returns.
  * Gaussian actions are clipped to the bounds on their way to the environment, and their standard deviation, which
    the paper lets a network predict, does not depend on the observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from agentkit import losses
from agentkit import networks as nets
from agentkit.agents.common.ranges import Fraction
from agentkit.agents.on_policy import Progress, Rows, advantages, agent_of_update, learn_from_segments
from agentkit.agents.policy_steps import FittedValueConfig, gradient_step, make_networks, run_epochs, value_loss
from agentkit.learning import Update, adam, global_norm, optimizer_step


@dataclasses.dataclass(frozen=True)
class Config(FittedValueConfig):
    """Settings of REINFORCE: `FittedValueConfig`'s; its `learning_rate` and `max_grad_norm` are the policy's, too."""

    gae_lambda: Fraction = 1.0


def make_loss(
    networks: nets.PolicyValue, config: Config
) -> Callable[[Any, Any, Rows], tuple[jax.Array, dict[str, jax.Array]]]:
    """``(policy parameters, all parameters, Rows) -> (loss, metrics)`` (paper, section 5, episodic REINFORCE)."""

    def loss(policy: Any, params: nets.PolicyCritic, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
        log_prob = distribution.log_prob(rows.sampled.sample)
        per_row = losses.policy_gradient_loss(log_prob, advantages(config, rows))
        policy_loss = losses.masked_mean(per_row, rows.mask)
        entropy = losses.masked_mean(distribution.entropy(), rows.mask)
        return policy_loss, {"policy_loss": policy_loss, "entropy": entropy}

    return loss


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """A step on the policy, then the fit of its baseline."""
    optimizer = adam(1.0, config.max_grad_norm)
    gradient = jax.grad(make_loss(networks, config), has_aux=True)

    def init_opt_state(params: nets.PolicyCritic) -> nets.PolicyCritic:
        return nets.PolicyCritic(*map(optimizer.init, params))

    def improve(
        params: nets.PolicyCritic, opt_state: nets.PolicyCritic, rows: Rows, progress: Progress
    ) -> tuple[nets.PolicyCritic, nets.PolicyCritic, dict[str, jax.Array]]:
        grads, metrics = gradient(params.policy, params, rows)
        policy, policy_state = optimizer_step(optimizer, grads, params.policy, opt_state.policy, config.learning_rate)
        (baseline, baseline_state), fitted = run_epochs(
            gradient_step(value_loss(networks, params), optimizer, config.learning_rate),
            (params.critic, opt_state.critic),
            rows,
            progress.key,
            num_epochs=config.num_value_epochs,
            num_minibatches=config.num_minibatches,
        )
        metrics |= {"grad_norm": global_norm(grads), "value_loss": fitted["value_loss"]}
        return nets.PolicyCritic(policy, baseline), nets.PolicyCritic(policy_state, baseline_state), metrics

    return learn_from_segments(networks, config, init_opt_state, improve)


make_agent = agent_of_update(Config, make_networks, make_update)
