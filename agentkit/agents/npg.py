"""NPG: natural policy gradient (Kakade 2001, "A Natural Policy Gradient", no arXiv number).

The gradient is measured by how much a step changes the policy, and not its parameters: multiplied by the inverse of
the Fisher matrix. A step of fixed size goes along it; the value is fitted afterwards.

Deviations from the paper:
  * The inverse is never made: some iterations of conjugate gradients solve for the direction, on the Fisher matrix
    of the batch with a multiple of the identity added (as Schulman et al. 2015, appendix C).
  * Advantages are GAE(lambda) of a learned value (Schulman et al. 2016), and normalised; the paper has a critic of
    features that are compatible with the policy, whose weights are the natural gradient.
  * The Fisher matrix is exact in the actions, in mean over the batch's observations; the paper estimates both.
  * Observations and returns are normalised by running statistics. Truncated episodes and unfinished segments
    bootstrap. Gaussian actions are clipped to the bounds on their way to the environment.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from agentkit import losses
from agentkit import networks as nets
from agentkit.agents.common.ranges import Positive
from agentkit.agents.on_policy import Rows, advantages, agent_of_update
from agentkit.agents.policy_steps import (
    NaturalConfig,
    PolicyStep,
    divergence_from,
    make_networks,
    natural_gradient,
    step_and_fit,
)
from agentkit.learning import Update


@dataclasses.dataclass(frozen=True)
class Config(NaturalConfig):
    """Settings of NPG, beside those of `NaturalConfig`.

    Attributes:
        step_size: of the policy, in units of the natural gradient.
    """

    step_size: Positive = 0.1


def make_step(networks: nets.PolicyValue, config: Config) -> PolicyStep:
    """A step along the natural gradient (paper, section 2)."""

    def step(params: nets.PolicyCritic, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
        def loss(policy: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
            log_prob = distribution.log_prob(rows.sampled.sample)
            per_row = losses.policy_gradient_loss(log_prob, advantages(config, rows))
            policy_loss = losses.masked_mean(per_row, rows.mask)
            entropy = losses.masked_mean(distribution.entropy(), rows.mask)
            return policy_loss, {"policy_loss": policy_loss, "entropy": entropy}

        gradient, metrics = jax.grad(loss, has_aux=True)(params.policy)
        divergence = divergence_from(networks, params, rows)
        natural = natural_gradient(divergence, params.policy, gradient, config.cg_iterations, config.damping)
        policy = jax.tree.map(lambda x, d: x - config.step_size * d, params.policy, natural.direction)
        return policy, {**metrics, "kl": divergence(policy), "cg_residual": natural.residual}

    return step


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """The policy's step, then the value's fit."""
    return step_and_fit(networks, config, make_step(networks, config))


make_agent = agent_of_update(Config, make_networks, make_update)
