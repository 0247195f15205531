"""A2C: advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", 1602.01783).

A3C in step: N environments fill short segments together, and each batch of them gives one gradient step on policy,
value and entropy, whose parameters choose the next action.

Differences from the paper:
  * Synchronous: one learner and one batch of all environments, instead of a thread for each that overwrites shared
    parameters.
  * Advantages are GAE(lambda) (Schulman et al. 2016); with `gae_lambda` 1 they are the paper's, of returns to the
    end of the segment.
  * Observations and returns are normalised by running statistics, gradients clipped to a global norm. Policy and
    value share nothing but the convolutions of images. The standard deviation of Gaussian actions does not depend on
    the observation; they are clipped to the bounds on their way to the environment.
  * RMSProp's mean of squares begins at 1, which keeps the first steps small (as in github.com/openai/baselines, a2c).
    Its epsilon, inside the root, is 1e-10: clipped to a norm of 0.5, gradients of 10,000 parameters are 5e-3 each in
    mean, and beside baselines' 1e-5 the squares of small ones do not count. The learning rate stays by default;
    `learning_rate` may be a schedule that falls to 0.
  * Truncated episodes bootstrap. An episode's final observation takes one of the T rows; only its value is of use.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, PolicyVariables, stochastic_policy, with_normalized_observations
from agentkit.agents.common.advantages import (
    EstimateAdvantages,
    Minibatch,
    compute_advantages,
    estimate_advantages,
    observe_segments,
    with_rows,
)
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.ranges import Fraction, NotNegative, OpenFraction, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import (
    Loss,
    Schedule,
    Update,
    UpdateOutput,
    global_norm,
    objective,
    optimizer_step,
    steps_before,
    value_in_update,
)
from agentkit.types import LossOutput, Params, ReplaySample, Step

if TYPE_CHECKING:
    import optax

UPDATE_ROWS = 80
"""Rows of an update where no segment_length is given: 5 of 16 environments."""


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of A2C, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        learning_rate: RMSProp's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        value_cost: weight of the value loss.
        entropy_cost: beta, weight of the entropy bonus.
        rms_decay: of RMSProp's mean of squared gradients.
        rms_epsilon: added to that mean.
        normalize_observations: whether to normalise vectors of floats by their running mean and deviation.
        normalize_values: whether the value network predicts normalised returns.
        normalize_advantages: whether to normalise the advantages of a batch to mean 0 and deviation 1.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: Sizes = (64, 64)
    gae_lambda: Fraction = 0.95
    learning_rate: Positive | Schedule = 7e-4
    max_grad_norm: Positive | None = 0.5
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative | Schedule = 0.01
    rms_decay: OpenFraction = 0.99
    rms_epsilon: Positive = 1e-10
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = False
    initial_std: Positive = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds tanh layers for the policy and others for the value."""
    return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std, torso)


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy, on normalised observations; in evaluation takes its mode."""
    del config
    return with_normalized_observations(stochastic_policy(networks, evaluation))


class State(NamedTuple):
    """Holds the training state of A2C.

    Attributes:
        variables: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: of the parameters.
        key: PRNG key ``uint32[2]``.
        num_updates: batches learned from, int32 ``[]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics
    opt_state: optax.OptState
    key: jax.Array
    num_updates: jax.Array


def make_loss(networks: nets.PolicyValue, config: Config) -> Loss:
    """Builds the losses of policy, value and entropy (algorithm S3, and section 4), in one number, of all rows."""

    def loss(params: Params, state: State | tuple[()], batch: ReplaySample[Minibatch], key: jax.Array) -> LossOutput:
        del state, key
        rows, entropy_cost = batch.data, value_in_update(config.entropy_cost, batch)
        policy, value = networks.apply(params, rows.observation)
        advantage = losses.standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage
        policy_losses = losses.policy_gradient_loss(policy.log_prob(rows.extras.sample), advantage)
        policy_loss = losses.masked_mean(policy_losses, rows.mask)
        value_loss = losses.masked_mean(0.5 * jnp.square(value - rows.target), rows.mask)
        entropy = losses.masked_mean(policy.entropy(), rows.mask)
        total = policy_loss + config.value_cost * value_loss - entropy_cost * entropy
        return LossOutput(total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})

    return loss


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Returns RMSProp of step size 1, after clipping, on gradients as one flat vector."""
    import optax  # Not at import time: actors load this file, and optimise nothing.

    optimizer = optax.rmsprop(1.0, decay=config.rms_decay, eps=config.rms_epsilon, initial_scale=1.0)
    if config.max_grad_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)
    return optax.flatten(optimizer)


def make_update(
    networks: nets.PolicyValue,
    loss: Loss,
    config: Config,
    optimizer: Optimizer | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Makes an update of one step on all rows of a batch of segments.

    With nothing normalised or scheduled, which only the learner knows, actors may compute the gradients, as in A3C.
    """
    # RMSProp is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    step_size = config.learning_rate if optimizer is None else 1.0
    rates = ["learning_rate"] if optimizer is None else []
    transformation = optimizer_of(optimizer, config, make_optimizer(config))
    advantages = functools.partial(
        compute_advantages,
        networks,
        discount=config.discount,
        estimate=functools.partial(estimate_advantages, config=config),
        normalize_values=config.normalize_values,
    )

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        variables, returns = PolicyVariables(params, statistics), nets.init_statistics(())
        return State(variables, returns, transformation.init(params), key, jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, loss_key = jax.random.split(state.key)
        rows, returns, explained_variance = advantages(state.variables, state.returns, batch.data)
        num_steps = steps_before(batch, rows.mask)
        counted = batch._replace(num_steps=num_steps)
        learning_rate = jnp.asarray(value_in_update(step_size, counted))
        params = state.variables.params
        grads, output = jax.grad(objective(loss), has_aux=True)(params, state, with_rows(counted, rows), loss_key)
        params, opt_state = optimizer_step(transformation, grads, params, state.opt_state, learning_rate)
        variables = PolicyVariables(params, observe_segments(state.variables, batch.data))
        metrics = {
            **output.metrics,
            "grad_norm": global_norm(grads),
            **dict.fromkeys(rates, learning_rate),
            "explained_variance": explained_variance,
        }
        return State(variables, returns, opt_state, key, state.num_updates + 1), UpdateOutput(metrics)

    def published(state: State) -> dict[str, PolicyVariables]:
        return {"policy": state.variables}

    changing = any(map(callable, (step_size, config.entropy_cost)))
    if config.normalize_observations or config.normalize_values or changing:
        return Update(init, update, published)

    def gradient(variables: PolicyVariables, batch: ReplaySample[Step], key: jax.Array) -> PolicyVariables:
        rows, *_ = advantages(variables, nets.init_statistics(()), batch.data)
        grads, _ = jax.grad(objective(loss), has_aux=True)(variables.params, (), with_rows(batch, rows), key)
        return variables._replace(params=grads)

    def apply(state: State, grads: PolicyVariables) -> State:
        params, opt_state = state.variables.params, state.opt_state
        params, opt_state = optimizer_step(transformation, grads.params, params, opt_state, step_size)
        variables = state.variables._replace(params=params)
        return state._replace(variables=variables, opt_state=opt_state, num_updates=state.num_updates + 1)

    return Update(init, update, published, gradient, apply)


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.PolicyValue] = make_networks,
    make_policy: MakePolicy[nets.PolicyValue, Config] = make_policy,
    make_loss: Callable[[nets.PolicyValue, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    estimate_advantages: EstimateAdvantages[Config] | None = None,
    make_update: Callable[[nets.PolicyValue, Loss, Config], Update] = make_update,
) -> Agent[nets.PolicyValue]:
    """Returns A2C as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, update_rows=UPDATE_ROWS),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(
            given(make_update, optimizer=optimizer, estimate_advantages=estimate_advantages), make_loss, config
        ),
    )
