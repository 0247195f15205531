"""REINFORCE with a baseline (Williams 1992, "Simple Statistical Gradient-Following Algorithms", no arXiv number).

Each action becomes likelier by how much the whole return that followed it exceeds what a value network expected of
its observation. One step on the policy for each batch of segments; the value is fitted to the same returns.

Differences from the paper:
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
import functools
from collections.abc import Callable
from typing import NamedTuple

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
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.ranges import Count, Fraction, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import (
    Loss,
    Schedule,
    Update,
    UpdateOutput,
    adam,
    global_norm,
    objective,
    optimizer_step,
    value_in_update,
)
from agentkit.losses import masked_mean, policy_gradient_loss, standardize
from agentkit.types import LossOutput, Params, ReplaySample, Step


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of REINFORCE, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        learning_rate: Adam's step size, of policy and value.
        max_grad_norm: clips the global norm of the policy's gradient, and of the value's; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        num_value_epochs: passes of the value's fit over the data of an update.
        num_minibatches: gradient steps on the value per epoch; divides batch_size * segment_length.
        normalize_observations: whether to normalise vectors of floats by their running mean and deviation.
        normalize_values: whether the value network predicts normalised returns.
        normalize_advantages: whether to normalise the advantages of a batch to mean 0 and deviation 1.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: Sizes = (64, 64)
    gae_lambda: Fraction = 1.0
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 0.5
    adam_epsilon: Positive = 1e-8
    num_value_epochs: Count = 10
    num_minibatches: Count = 4
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
    """Holds the training state of REINFORCE.

    Attributes:
        variables: parameters, a `PolicyCritic`, and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_states: of policy and value.
        key: PRNG key ``uint32[2]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics
    opt_states: nets.PolicyCritic
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
    """Builds the policy gradient's loss (section 5, episodic REINFORCE) and the value's squared error."""

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Minibatch], key: jax.Array) -> LossOutput:
        del key
        params, rows = state.variables.params, batch.data
        distribution, _ = networks.apply(params._replace(policy=policy), rows.observation)
        advantage = standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage
        per_row = policy_gradient_loss(distribution.log_prob(rows.extras.sample), advantage)
        loss = masked_mean(per_row, rows.mask)
        return LossOutput(loss, {"policy_loss": loss, "entropy": masked_mean(distribution.entropy(), rows.mask)})

    return Losses(policy_loss, functools.partial(value_loss, networks))


def make_update(
    networks: nets.PolicyValue,
    losses: Losses,
    config: Config,
    optimizer: Optimizers | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Takes a step on the policy, then fits the value to the same returns."""
    # Adam is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    default = adam(1.0, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, value=default)
    step_sizes = {name: config.learning_rate if each is default else 1.0 for name, each in optimizers.items()}

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        opt_states = nets.PolicyCritic(
            optimizers["policy"].init(params.policy), optimizers["value"].init(params.critic)
        )
        return State(PolicyVariables(params, statistics), nets.init_statistics(()), opt_states, key)

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
        rates = {name: value_in_update(step_size, batch, rows.mask) for name, step_size in step_sizes.items()}
        params = state.variables.params
        policy_opt, critic_opt = state.opt_states
        policy_key = jax.random.fold_in(state.key, 2**32 - 1)
        grads, output = jax.grad(objective(losses.policy), has_aux=True)(
            params.policy, state, with_rows(batch, rows), policy_key
        )
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, params.policy, policy_opt, rates["policy"])

        def fit(learned: Fitted, minibatch: Minibatch, key: jax.Array) -> tuple[Fitted, dict[str, jax.Array]]:
            grads, output = jax.grad(objective(losses.value), has_aux=True)(
                learned[0], state, with_rows(batch, minibatch), key
            )
            return optimizer_step(optimizers["value"], grads, *learned, rates["value"]), output.metrics

        (critic, critic_opt), fitted = run_epochs(
            fit,
            (params.critic, critic_opt),
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
            "grad_norm": global_norm(grads),
            "value_loss": fitted["value_loss"],
            "explained_variance": explained_variance,
        }
        opt_states = nets.PolicyCritic(policy_opt, critic_opt)
        return State(variables, returns, opt_states, key), UpdateOutput(metrics)

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
    """Returns REINFORCE as an agent, with any of its parts replaced."""
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
