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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents.checks import Count, Positive
from agentkit.agents.on_policy import (
    FittedValueConfig,
    Progress,
    Rows,
    advantages,
    agent_of_update,
    learn_from_segments,
    value_loss,
)
from agentkit.learning import Update, adam, gradient_step, run_epochs
from agentkit.types import Array, Nest


@dataclasses.dataclass(frozen=True)
class NaturalConfig(FittedValueConfig):
    """Settings of agents whose policy follows the natural gradient: NPG and TRPO.

    Attributes:
        cg_iterations: of conjugate gradients, each a product with the Fisher matrix.
        damping: times the identity is added to the Fisher matrix.
    """

    segment_length: Count = 64
    cg_iterations: Count = 10
    damping: Positive = 0.1


@dataclasses.dataclass(frozen=True)
class Config(NaturalConfig):
    """Settings of NPG, beside those of `NaturalConfig`.

    Attributes:
        step_size: of the policy, in units of the natural gradient.
    """

    step_size: Positive = 0.1


def make_networks(environment_spec: specs.EnvironmentSpec, config: NaturalConfig) -> nets.PolicyValue:
    """Tanh layers for the policy and others for the value, whose parameters are apart."""
    return nets.independent_policy_value(environment_spec, config.hidden_sizes, config.initial_std)


Divergence = Callable[[Nest], Array]
"""``params -> KL [] of the distribution at these parameters from a fixed one``; least, 0, where they agree."""


def fisher_vector_product(divergence: Divergence, params: Nest, vector: Nest) -> Nest:
    """F v, a nest like `params`, with F the Fisher matrix at `params`.

    F is the Hessian of the KL from the distribution at `params` (Schulman et al. 2015, appendix C), and its product
    with a vector the derivative of the KL's gradient along it (Pearlmutter 1994).

    Args:
        divergence: from the distribution at `params`.
        params: where the Fisher matrix is taken.
        vector: a nest like `params`.
    """
    return jax.jvp(jax.grad(divergence), (params,), (vector,))[1]


class NaturalGradient(NamedTuple):
    """What `natural_gradient` finds.

    Attributes:
        direction: x with (F + damping I) x = gradient, a nest like the parameters.
        curvature: x (F + damping I) x, float32 ``[]``: a step of c x changes the KL by about c^2 / 2 times that.
        residual: what conjugate gradients left of the gradient, |gradient - (F + damping I) x| / |gradient|, ``[]``.
    """

    direction: Nest
    curvature: Array
    residual: Array


def natural_gradient(
    divergence: Divergence, params: Nest, gradient: Nest, num_iterations: int, damping: float
) -> NaturalGradient:
    """The direction that climbs most for its change of the distribution (Kakade 2001), by conjugate gradients.

    Args:
        divergence: from the distribution at `params`.
        params: of the policy.
        gradient: of what is to be climbed, at `params`.
        num_iterations: of conjugate gradients (Hestenes & Stiefel 1952), which end early at a residual of 1e-5.
        damping: times the identity is added to the Fisher matrix, which need not have full rank; > 0.
    """
    b, to_nest = ravel_pytree(gradient)

    def product(v: Array) -> Array:
        return ravel_pytree(fisher_vector_product(divergence, params, to_nest(v)))[0] + damping * v

    x, _ = cg(product, b, maxiter=num_iterations)
    image, norm = product(x), jnp.linalg.norm(b)
    residual = jnp.linalg.norm(b - image) / jnp.where(norm > 0, norm, 1.0)
    return NaturalGradient(to_nest(x), jnp.vdot(x, image), residual)


def divergence_from(networks: nets.PolicyValue, params: nets.ActorCritic, rows: Rows) -> Divergence:
    """From the policy of `params`, in mean over the rows, where there is an action."""
    old, _ = networks.apply(params, rows.observation)

    def divergence(policy: Any) -> jax.Array:
        new, _ = networks.apply(params._replace(policy=policy), rows.observation)
        return losses.masked_mean(old.kl(new), rows.mask)

    return divergence


PolicyStep = Callable[[nets.ActorCritic, Rows], tuple[Any, dict[str, jax.Array]]]
"""``(params, rows) -> (policy parameters, metrics)``: a step that needs no optimiser."""


def make_step(networks: nets.PolicyValue, config: Config) -> PolicyStep:
    """A step along the natural gradient (paper, section 2)."""

    def step(params: nets.ActorCritic, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
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


def step_and_fit(networks: nets.PolicyValue, config: NaturalConfig, step: PolicyStep) -> Update:
    """For each batch one step of the policy on all of its rows, then a fit of the value, which leaves that as it is."""
    optimizer = adam(1.0, config.max_grad_norm)

    def improve(params: Any, opt_state: Any, rows: Rows, progress: Progress) -> tuple[Any, Any, dict[str, jax.Array]]:
        policy, metrics = step(params, rows)
        (value, opt_state), fitted = run_epochs(
            gradient_step(value_loss(networks, params), optimizer, config.learning_rate),
            (params.critic, opt_state),
            rows,
            progress.key,
            num_epochs=config.num_value_epochs,
            num_minibatches=config.num_minibatches,
        )
        return nets.ActorCritic(policy, value), opt_state, {**metrics, "value_loss": fitted["value_loss"]}

    return learn_from_segments(networks, config, lambda params: optimizer.init(params.critic), improve)


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """The policy's step, then the value's fit."""
    return step_and_fit(networks, config, make_step(networks, config))


Agent = agent_of_update(Config, make_networks, make_update)
