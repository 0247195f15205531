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
from agentkit.agents.fitted_value import FittedValueConfig, make_networks, value_fit
from agentkit.agents.on_policy import (
    Networks,
    Progress,
    Rows,
    advantages,
    learn_from_segments,
    make_policy,
)
from agentkit.agents.segments import agent_of_update
from agentkit.learning import ActorCritic, Update, adam, descend, global_norm


@dataclasses.dataclass(frozen=True)
class Config(FittedValueConfig):
    """Settings of REINFORCE: `FittedValueConfig`'s; its `learning_rate` and `max_grad_norm` are the policy's, too."""

    gae_lambda: float = 1.0


def make_loss(networks: Networks, config: Config) -> Callable[[Any, Any, Rows], tuple[jax.Array, dict[str, jax.Array]]]:
    """``(policy parameters, all parameters, Rows) -> (loss, metrics)`` (paper, section 5, episodic REINFORCE)."""

    def loss(policy: Any, params: ActorCritic, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
        log_prob = distribution.log_prob(rows.sampled.sample)
        per_row = losses.policy_gradient_loss(log_prob, advantages(config, rows))
        policy_loss = losses.masked_mean(per_row, rows.mask)
        entropy = losses.masked_mean(distribution.entropy(), rows.mask)
        return policy_loss, {"policy_loss": policy_loss, "entropy": entropy}

    return loss


def make_update(networks: Networks, config: Config) -> Update:
    """A step on the policy, then the fit of its baseline."""
    optimizer, baseline = adam(1.0, config.max_grad_norm), value_fit(networks, config)
    gradient = jax.grad(make_loss(networks, config), has_aux=True)

    def init_opt_state(params: ActorCritic) -> ActorCritic:
        return ActorCritic(optimizer.init(params.policy), baseline.init(params))

    def improve(
        params: ActorCritic, opt_state: ActorCritic, rows: Rows, progress: Progress
    ) -> tuple[ActorCritic, ActorCritic, dict[str, jax.Array]]:
        grads, metrics = gradient(params.policy, params, rows)
        policy, policy_state = descend(optimizer, grads, params.policy, opt_state.policy, config.learning_rate)
        params, baseline_state, value_loss = baseline.fit(
            params._replace(policy=policy), opt_state.critic, rows, progress.key
        )
        metrics |= {"grad_norm": global_norm(grads), "value_loss": value_loss}
        return params, ActorCritic(policy_state, baseline_state), metrics

    return learn_from_segments(networks, config, init_opt_state, improve)


Agent = agent_of_update(Config, make_networks, make_policy, make_update)
