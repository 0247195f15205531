"""NPG: natural policy gradient (Kakade 2001, "A Natural Policy Gradient", no arXiv number).

The gradient is measured by how much a step changes the policy, and not its parameters: multiplied by the inverse of
the Fisher matrix. A step of fixed size goes along it; the value is fitted afterwards.

Differences from the paper:
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
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax

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
from agentkit.agents.common.ranges import Count, Fraction, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Loss, Schedule, Update, UpdateOutput, adam, objective, optimizer_step, value_in_update
from agentkit.losses import masked_mean, policy_gradient_loss, standardize
from agentkit.types import LossOutput, Params, ReplaySample, Step

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of NPG, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        step_size: of the policy, in units of the natural gradient.
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
    step_size: Positive = 0.1
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
    """Holds the training state of NPG.

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
    """Holds the loss of the policy and the loss of its value.

    Attributes:
        policy: ``(policy, state, batch, key) -> LossOutput``.
        value: ``(critic, state, minibatch, key) -> LossOutput``.
    """

    policy: Loss
    value: Loss


def make_losses(networks: nets.PolicyValue, config: Config) -> Losses:
    """Builds the loss whose gradient is the policy gradient, and the value's squared error."""

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Minibatch], key: jax.Array) -> LossOutput:
        del key
        params, rows = state.variables.params, batch.data
        distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
        advantage = standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage
        log_prob = distribution.log_prob(rows.extras.sample)
        loss = masked_mean(policy_gradient_loss(log_prob, advantage), rows.mask)
        return LossOutput(loss, {"policy_loss": loss, "entropy": masked_mean(distribution.entropy(), rows.mask)})

    return Losses(policy_loss, functools.partial(value_loss, networks))


def make_update(
    networks: nets.PolicyValue,
    losses: Losses,
    config: Config,
    optimizer: Optimizers | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Takes a step along the natural gradient (section 2), then fits the value, which leaves the policy as it is."""
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
        gradient, output = jax.grad(objective(losses.policy), has_aux=True)(
            params.policy, state, with_rows(batch, rows), policy_key
        )
        mean_kl = mean_kl_from(networks, params, rows)
        natural = natural_gradient(mean_kl, params.policy, gradient, config.cg_iterations, config.damping)
        policy = jax.tree.map(lambda x, d: x - config.step_size * d, params.policy, natural.direction)

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
        metrics = {
            **output.metrics,
            "kl": mean_kl(policy),
            "cg_residual": natural.residual,
            "value_loss": fitted["value_loss"],
            "explained_variance": explained_variance,
        }
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
    """Returns NPG as an agent, with any of its parts replaced."""
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
