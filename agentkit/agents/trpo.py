"""TRPO: trust region policy optimization (Schulman et al. 2015, "Trust Region Policy Optimization", 1502.05477).

The largest step along the natural gradient that a bound on the KL from the acting policy allows: its length comes
from a quadratic model of the KL, and a line search takes it back until the KL is within the bound and the surrogate,
the advantage of the new policy on the old one's data, is better.

Deviations from the paper:
  * Advantages are GAE(lambda) of a learned value (Schulman et al. 2016), and normalised; the paper has the returns
    of single paths or of rollouts from one state.
  * The Fisher matrix is of the whole batch, where the paper takes a tenth of it, with a multiple of the identity
    added, which also shortens the step.
  * Observations and returns are normalised by running statistics. Truncated episodes and unfinished segments
    bootstrap. Gaussian actions are clipped to the bounds on their way to the environment.
  * Batches are small (the paper: 50,000 steps and more), networks larger (64 x 64 tanh units).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses
from agentkit import networks as nets
from agentkit.agents.common.ranges import Count, Positive, Range
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
    """Settings of TRPO, beside those of `NaturalConfig`.

    Attributes:
        max_kl: delta, the bound on the mean KL of an update (paper, eq. 14).
        backtrack_factor: by which the line search shortens the step, in (0, 1).
        max_backtracks: lengths that it tries; where none will do, the policy stays.
    """

    max_kl: Positive = 0.01
    backtrack_factor: Annotated[float, Range("between 0 and 1", lambda value: 0 < value < 1)] = 0.8
    max_backtracks: Count = 10


class Found(NamedTuple):
    """What a line search finds.

    Attributes:
        params: the first that will do; those it was given where none will.
        fraction: of the whole step, ``[]``; 0 where none will do, and so are the others then.
        gain: of the objective ``[]``.
        kl: ``[]``.
    """

    params: Any
    fraction: jax.Array
    gain: jax.Array
    kl: jax.Array


def line_search(
    objective: Callable[[Any], jax.Array],
    divergence: Callable[[Any], jax.Array],
    params: Any,
    step: Any,
    config: Config,
) -> Found:
    """Shortens a step until the objective is better than at `params` and the KL is within the bound (appendix C).

    Args:
        objective: ``params -> []``, to be climbed.
        divergence: ``params -> KL []``.
        params: where the search begins.
        step: the whole step, a nest like `params`.
        config: has the bound, the factor and the number of lengths to try.
    """
    before = objective(params)

    def moved(fraction: jax.Array) -> Any:
        return jax.tree.map(lambda x, dx: x + fraction * dx, params, step)

    def look(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, *_ = state
        fraction = config.backtrack_factor ** number.astype(jnp.float32)
        candidate = moved(fraction)
        gain, kl = objective(candidate) - before, divergence(candidate)
        return number + 1, (gain > 0) & (kl <= config.max_kl), fraction, gain, kl

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        number, found, *_ = state
        return ~found & (number < config.max_backtracks)

    start = (jnp.zeros((), jnp.int32), jnp.asarray(False), *[jnp.zeros(())] * 3)
    _, found, *measured = jax.lax.while_loop(unfinished, look, start)
    fraction, gain, kl = (jnp.where(found, x, 0.0) for x in measured)
    # Chosen and not added as zeros: of a step that overflowed, no fraction is 0.
    chosen = jax.tree.map(lambda new, old: jnp.where(found, new, old), moved(fraction), params)
    return Found(chosen, fraction, gain, kl)


def make_step(networks: nets.PolicyValue, config: Config) -> PolicyStep:
    """The largest step that the bound and the surrogate allow (paper, section 6 and appendix C)."""

    def step(params: nets.PolicyCritic, rows: Rows) -> tuple[Any, dict[str, jax.Array]]:
        advantage = advantages(config, rows)

        def surrogate(policy: Any) -> jax.Array:
            distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
            log_ratio = distribution.log_prob(rows.sampled.sample) - rows.sampled.log_prob
            # What is stored where no action was taken may have an exponential that overflows.
            ratio = jnp.exp(jnp.where(rows.mask > 0, log_ratio, 0.0))
            return losses.masked_mean(ratio * advantage, rows.mask)

        divergence, gradient = divergence_from(networks, params, rows), jax.grad(surrogate)(params.policy)
        natural = natural_gradient(divergence, params.policy, gradient, config.cg_iterations, config.damping)
        length = jnp.sqrt(2.0 * config.max_kl / jnp.maximum(natural.curvature, 1e-12))  # That far the model has max_kl.
        whole = jax.tree.map(lambda x: length * x, natural.direction)
        found = line_search(surrogate, divergence, params.policy, whole, config)
        metrics = {"surrogate_gain": found.gain, "kl": found.kl, "step_fraction": found.fraction}
        entropy = losses.masked_mean(networks.apply(params, rows.observation)[0].entropy(), rows.mask)
        return found.params, {**metrics, "entropy": entropy, "cg_residual": natural.residual}

    return step


def make_update(networks: nets.PolicyValue, config: Config) -> Update:
    """The policy's step, then the value's fit, which leaves the policy within its bound."""
    return step_and_fit(networks, config, make_step(networks, config))


make_agent = agent_of_update(Config, make_networks, make_update)
