"""TRPO: trust region policy optimization (Schulman et al. 2015, "Trust Region Policy Optimization", 1502.05477).

The largest step along the natural gradient that a bound on the KL from the acting policy allows: its length comes
from a quadratic model of the KL, and a line search takes it back until the KL is within the bound and the surrogate,
the advantage of the new policy on the old one's data, is better.

Differences from the paper:
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
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, PolicyVariables, stochastic_policy, with_normalized_observations
from agentkit.agents.common.advantages import (
    EstimateAdvantages,
    Minibatch,
    compute_advantages,
    estimate_advantages,
    observe_segments,
    value_loss,
    with_rows,
)
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.epochs import Fitted, run_epochs
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.natural_gradient import mean_kl_from, natural_gradient
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.ranges import Count, Fraction, InnerFraction, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Loss, Schedule, Update, UpdateOutput, adam, objective, optimizer_step, value_in_update
from agentkit.losses import masked_mean, standardize
from agentkit.types import Params, ReplaySample, Step

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of TRPO, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        max_kl: delta, the bound on the mean KL of an update (eq. 14).
        backtrack_factor: by which the line search shortens the step, in (0, 1).
        max_backtracks: lengths that it tries; where none is accepted, the policy stays.
        learning_rate: Adam's step size, of the value.
        max_grad_norm: clips the global norm of the value's gradient; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        num_value_epochs: passes of the value's fit over the data of an update.
        num_minibatches: gradient steps on the value per epoch; divides batch_size * segment_length.
        cg_iterations: of conjugate gradients, each a product with the Fisher matrix.
        damping: times the identity is added to the Fisher matrix.
        normalize_observations: whether to normalise vectors of floats by their running mean and deviation.
        normalize_values: whether the value network predicts normalised returns.
        normalize_advantages: whether to normalise the advantages of a batch to mean 0 and deviation 1.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: Sizes = (64, 64)
    max_kl: Positive = 0.01
    backtrack_factor: InnerFraction = 0.8
    max_backtracks: Count = 10
    gae_lambda: Fraction = 0.95
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 0.5
    adam_epsilon: Positive = 1e-8
    num_value_epochs: Count = 10
    num_minibatches: Count = 4
    cg_iterations: Count = 10
    damping: Positive = 0.1
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True
    initial_std: Positive = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds tanh layers for the policy and others for the value, with separate parameters."""
    return nets.separate_policy_value(environment_spec, config.hidden_sizes, config.initial_std, torso)


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy, on normalised observations; in evaluation takes its mode."""
    del config
    return with_normalized_observations(stochastic_policy(networks, evaluation))


class State(NamedTuple):
    """Holds the training state of TRPO.

    Attributes:
        variables: parameters, a `PolicyCritic`, and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: of the value.
        key: PRNG key ``uint32[2]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics
    opt_state: optax.OptState
    key: jax.Array


class Losses(NamedTuple):
    """Holds the objective of the policy and the loss of its value.

    Attributes:
        surrogate: ``(policy, state, batch, key) -> []``, to maximise: the line search compares it at one key.
        value: ``(critic, state, minibatch, key) -> LossOutput``.
    """

    surrogate: Callable[[Params, State, ReplaySample[Minibatch], jax.Array], jax.Array]
    value: Loss


def make_losses(networks: nets.PolicyValue, config: Config) -> Losses:
    """Builds the surrogate objective (eq. 14) and the value's squared error."""

    def surrogate(policy: Params, state: State, batch: ReplaySample[Minibatch], key: jax.Array) -> jax.Array:
        del key
        params, rows = state.variables.params, batch.data
        distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
        advantage = standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage
        log_ratio = distribution.log_prob(rows.extras.sample) - rows.extras.log_prob
        # Rows without an action have arbitrary log-ratios, whose exp may overflow.
        ratio = jnp.exp(jnp.where(rows.mask > 0, log_ratio, 0.0))
        return masked_mean(ratio * advantage, rows.mask)

    return Losses(surrogate, functools.partial(value_loss, networks))


class LineSearchResult(NamedTuple):
    """Holds the result of a line search.

    Attributes:
        params: at the longest accepted step; those at the start where none is accepted.
        fraction: of the whole step, ``[]``; 0 where none is accepted.
        gain: of the objective ``[]``; 0 likewise.
        kl: ``[]``; 0 likewise.
    """

    params: Params
    fraction: jax.Array
    gain: jax.Array
    kl: jax.Array


def line_search(
    objective: Callable[[Params], jax.Array],
    mean_kl: Callable[[Params], jax.Array],
    params: Params,
    step: Params,
    config: Config,
) -> LineSearchResult:
    """Shortens a step until the objective is better than at `params` and the KL is within the bound (appendix C).

    Args:
        objective: ``params -> []``, to maximise.
        mean_kl: ``params -> KL []``.
        params: where the search begins.
        step: the whole step, a nest like `params`.
        config: has the bound, the factor and the number of lengths to try.
    """
    before = objective(params)

    def moved(fraction: jax.Array) -> Params:
        return jax.tree.map(lambda x, dx: x + fraction * dx, params, step)

    def try_next(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, *_ = state
        fraction = config.backtrack_factor ** number.astype(jnp.float32)
        candidate = moved(fraction)
        gain, kl = objective(candidate) - before, mean_kl(candidate)
        return number + 1, (gain > 0) & (kl <= config.max_kl), fraction, gain, kl

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        number, found, *_ = state
        return ~found & (number < config.max_backtracks)

    start = (jnp.zeros((), jnp.int32), jnp.asarray(False), *[jnp.zeros(())] * 3)
    _, found, *measured = jax.lax.while_loop(unfinished, try_next, start)
    fraction, gain, kl = (jnp.where(found, x, 0.0) for x in measured)
    # where(), since 0 times an infinite step is NaN.
    chosen = jax.tree.map(lambda new, old: jnp.where(found, new, old), moved(fraction), params)
    return LineSearchResult(chosen, fraction, gain, kl)


def improve_policy(
    networks: nets.PolicyValue,
    losses: Losses,
    config: Config,
    state: State,
    batch: ReplaySample[Minibatch],
    key: jax.Array,
) -> tuple[Params, dict[str, jax.Array]]:
    """Takes the largest step that the bound and the surrogate allow (section 6 and appendix C).

    Returns: the policy's parameters, and metrics.
    """

    def surrogate(policy: Params) -> jax.Array:
        return losses.surrogate(policy, state, batch, key)

    params, rows = state.variables.params, batch.data
    mean_kl, gradient = mean_kl_from(networks, params, rows), jax.grad(surrogate)(params.policy)
    natural = natural_gradient(mean_kl, params.policy, gradient, config.cg_iterations, config.damping)
    length = jnp.sqrt(2.0 * config.max_kl / jnp.maximum(natural.curvature, 1e-12))  # The model's KL is max_kl.
    step = jax.tree.map(lambda x: length * x, natural.direction)
    found = line_search(surrogate, mean_kl, params.policy, step, config)
    entropy = masked_mean(networks.apply(params, rows.observation)[0].entropy(), rows.mask)
    return found.params, {
        "surrogate_gain": found.gain,
        "kl": found.kl,
        "step_fraction": found.fraction,
        "entropy": entropy,
        "cg_residual": natural.residual,
    }


def make_update(
    networks: nets.PolicyValue,
    losses: Losses,
    config: Config,
    optimizer: Optimizers | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Makes an update that moves the policy within its bound, then fits the value without changing the policy."""
    # Adam is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    default = adam(1.0, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, value=default)
    step_size = config.learning_rate if optimizers["value"] is default else 1.0

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        return State(
            PolicyVariables(params, statistics), nets.init_statistics(()), optimizers["value"].init(params.critic), key
        )

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, epochs_key = jax.random.split(state.key)
        rows, returns, explained_variance = compute_advantages(
            networks,
            state.variables,
            state.returns,
            batch.data,
            functools.partial(estimate_advantages, config=config),
            discount=config.discount,
            normalize_values=config.normalize_values,
        )
        params = state.variables.params
        policy_key = jax.random.fold_in(state.key, 2**32 - 1)
        policy, metrics = improve_policy(networks, losses, config, state, with_rows(batch, rows), policy_key)

        learning_rate = value_in_update(step_size, batch, rows.mask)

        def fit(learned: Fitted, minibatch: Minibatch, key: jax.Array) -> tuple[Fitted, dict[str, jax.Array]]:
            grads, output = jax.grad(objective(losses.value), has_aux=True)(
                learned[0], state, with_rows(batch, minibatch), key
            )
            return optimizer_step(optimizers["value"], grads, *learned, learning_rate), output.metrics

        (critic, opt_state), fitted = run_epochs(
            fit,
            (params.critic, state.opt_state),
            rows,
            epochs_key,
            num_epochs=config.num_value_epochs,
            num_minibatches=config.num_minibatches,
            mask=rows.mask,
        )
        statistics = observe_segments(state.variables, batch.data)
        variables = PolicyVariables(nets.PolicyCritic(policy, critic), statistics)
        metrics |= {"value_loss": fitted["value_loss"], "explained_variance": explained_variance}
        return State(variables, returns, opt_state, key), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.variables})


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.PolicyValue] = make_networks,
    make_policy: MakePolicy[nets.PolicyValue, Config] = make_policy,
    make_losses: Callable[[nets.PolicyValue, Config], Losses] = make_losses,
    optimizer: Optimizers | None = None,
    estimate_advantages: EstimateAdvantages[Config] | None = None,
    make_update: Callable[[nets.PolicyValue, Losses, Config], Update] = make_update,
) -> Agent[nets.PolicyValue]:
    """Returns TRPO as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, num_minibatches=config.num_minibatches),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(
            given(make_update, optimizer=optimizer, estimate_advantages=estimate_advantages), make_losses, config
        ),
    )
