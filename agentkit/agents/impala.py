"""IMPALA: importance weighted actor-learner architecture (Espeholt et al. 2018, "IMPALA: Scalable ...", 1802.01561).

Many actors fill a queue of segments, one learner takes each once. It may be some updates ahead of the policy that
acted: V-trace corrects values and policy gradient for that. With a `core_size` the policy has a memory (a core, such as
an LSTM), which begins a segment with the state that the actor had there.

Differences from the paper:
  * Adam instead of RMSProp; losses are means over rows, not sums. The step size falls where `learning_rate` is a
    schedule.
  * Observations are normalised by running statistics, and values are of returns that are: with large returns the
    value's loss drowns the policy's otherwise, and until a value has grown to 100 each advantage praises what was done.
    (PopArt, Hessel et al. 2018, 1809.04474, rescales the last layer with the statistics, too.)
  * Without images and memory policy and value share nothing. Else they share a few ReLU layers (for images behind the
    convolutions of Mnih et al. 2015, or with `residual_torso` behind those of the paper's larger network), a memory if
    wanted, and have linear heads.
  * Rewards and actions before are no inputs of the network; ``--wrapper observation_action_reward`` makes them some.
  * Rewards are not clipped.
  * Continuous actions, too: Gaussian, clipped to the bounds on their way to the environment.
  * Truncated episodes bootstrap. An episode's final observation takes one of the T rows; only its value is of use.
  * Actors that share a process with the learner wait for it: then its data are on-policy, and V-trace corrects nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, PolicyVariables, stochastic_policy, with_normalized_observations
from agentkit.agents.common.advantages import Trajectories, mean_and_std, merge_time, observe_segments
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import (
    Loss,
    Schedule,
    Update,
    UpdateOutput,
    adam,
    global_norm,
    objective,
    optimizer_step,
    steps_before,
    tell_counts,
    value_in_update,
)
from agentkit.types import Array, LossOutput, Params, ReplaySample, Step, has_action

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of IMPALA, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value; with images or a `core_size` of the shared ReLU
            layers.
        core_size: units of the memory behind them; None for a policy without memory.
        core: the kind of memory, where there is a `core_size`: "lstm", "gru", "gtrxl" or a `networks.GTrXL`.
        residual_torso: images go through the paper's residual convolutions (figure 3, right) first, not through DQN's.
        queue_size: segments that wait for the learner, at most: so far may actors be ahead; None for as few as can be.
        vtrace_lambda: from 0 (one-step targets) to 1 (eq. 1).
        rho_clip: the largest ratio in V-trace's errors (rho bar).
        policy_rho_clip: the largest ratio in the policy gradient.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus.
        normalize_observations: whether the networks see observations normalised by running statistics.
        normalize_values: whether the value network predicts normalised returns.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    segment_length: Count = 20
    hidden_sizes: Sizes = (64, 64)
    core_size: Count | None = None
    core: nets.CoreName | nets.GTrXL = dataclasses.field(default="lstm", kw_only=True)
    residual_torso: bool = False
    queue_size: Count | None = None
    vtrace_lambda: Fraction = 1.0
    rho_clip: Positive = 1.0
    policy_rho_clip: Positive = 1.0
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = 1.0
    adam_epsilon: Positive = 1e-8
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative | Schedule = 0.01
    normalize_observations: bool = True
    normalize_values: bool = True
    initial_std: Positive = 1.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an unknown kind of memory."""
        super().__post_init__()
        nets.check_core(self.core)


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds layers for the policy and others for the value; with images or a memory both share ReLU layers and it."""
    if config.residual_torso and torso is not nets.torso:
        raise ConfigError("Expected residual_torso=True or a torso of your own, found both. Leave one of them out.")
    has_image = any(nets.is_image(leaf.shape) for leaf in jax.tree.leaves(environment_spec.observations))
    if config.core_size is None and not config.residual_torso and not has_image:
        return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std, torso)
    if config.residual_torso:
        torso = nets.residual_torso
    return nets.recurrent_policy_value(
        environment_spec, config.hidden_sizes, config.initial_std, config.core_size, torso, config.core
    )


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy, on normalised observations; in evaluation takes its mode."""
    del config
    return with_normalized_observations(stochastic_policy(networks, evaluation))


class State(NamedTuple):
    """Holds the training state of IMPALA.

    Attributes:
        variables: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``; ``()`` where values are in units of rewards.
        opt_state: of the parameters.
        key: PRNG key ``uint32[2]``.
        num_updates: batches learned from, int32 ``[]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics | tuple[()]
    opt_state: optax.OptState
    key: jax.Array
    num_updates: jax.Array


EstimateTargets = Callable[[Trajectories, Config], losses.VTrace]
"""``(segments, config) -> targets and advantages [B, T]``."""


def estimate_targets(segments: Trajectories, config: Config) -> losses.VTrace:
    """Returns value targets and advantages ``[B, T]`` of segments by V-trace (eq. 1, and section 4.2)."""
    reward, discount, values, mask, log_ratio = segments
    return losses.vtrace(
        reward,
        discount,
        values,
        log_ratio,
        mask,
        lambda_=config.vtrace_lambda,
        rho_clip=config.rho_clip,
        policy_rho_clip=config.policy_rho_clip,
    )


class Estimates(NamedTuple):
    """Holds what networks and the estimator say of segments' rows, leaves ``[B, T]``.

    Attributes:
        distribution: of actions.
        output: of the value network.
        log_prob: of the actions taken.
        log_ratio: of the policy to the one that acted; 0 in rows without an action.
        vtrace: targets and advantages, in units of rewards.
        mask: 0 in rows without an action, else 1.
    """

    distribution: nets.Distribution
    output: Array
    log_prob: Array
    log_ratio: Array
    vtrace: losses.VTrace
    mask: Array


def estimate(
    networks: nets.PolicyValue,
    config: Config,
    params: Params,
    returns: nets.RunningStatistics | tuple[()],
    steps: Step,
    estimate_targets: EstimateTargets = estimate_targets,
) -> Estimates:
    """Applies networks and the estimator to segments, leaves ``[B, T + 1, ...]``, of normalised observations."""
    mean, std = mean_and_std(returns)
    distribution, outputs = networks.apply(params, steps.observation, nets.stored_memory(steps))  # [B, T + 1]
    distribution, extras, reward, discount = jax.tree.map(
        lambda x: jnp.asarray(x)[:, :-1], (distribution, steps.extras, steps.reward, steps.discount)
    )
    mask = has_action(steps.start_of_episode)  # [B, T]
    log_prob = distribution.log_prob(extras.sample)
    log_ratio = jnp.where(mask > 0, log_prob - extras.log_prob, 0.0)
    discount = config.discount * discount.astype(jnp.float32)
    segments = Trajectories(reward.astype(jnp.float32), discount, mean + std * outputs, mask, log_ratio)
    vtrace = estimate_targets(jax.lax.stop_gradient(segments), config)  # One's own estimator may not do so itself.
    return Estimates(distribution, outputs[:, :-1], log_prob, log_ratio, vtrace, mask)


def make_loss(networks: nets.PolicyValue, config: Config, estimate_targets: EstimateTargets = estimate_targets) -> Loss:
    """Builds the losses of policy gradient, value and entropy (section 4.2), in one number.

    A batch has segments of normalised observations, leaves ``[B, T + 1, ...]``. The state has taken its targets in; it
    is ``()`` where actors compute the gradients.
    """

    def loss(params: Params, state: State | tuple[()], batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        del key
        returns = state.returns if isinstance(state, State) else ()
        mean, std = mean_and_std(returns)
        rows = estimate(networks, config, params, returns, batch.data, estimate_targets)
        target = (rows.vtrace.target - mean) / std
        means = {
            "policy_loss": -rows.log_prob * rows.vtrace.advantage / std,
            "value_loss": 0.5 * jnp.square(target - rows.output),
            "entropy": rows.distribution.entropy(),
            "kl": losses.approximate_kl(rows.log_ratio),
        }
        metrics = {name: losses.masked_mean(x, rows.mask) for name, x in means.items()}
        metrics["explained_variance"] = losses.explained_variance(rows.output, target, rows.mask)
        total = metrics["policy_loss"] + config.value_cost * metrics["value_loss"]
        entropy_cost = value_in_update(config.entropy_cost, batch, rows.mask)
        return LossOutput(total - entropy_cost * metrics["entropy"], metrics)

    return loss


def make_update(
    networks: nets.PolicyValue,
    loss: Loss,
    config: Config,
    optimizer: Optimizer | None = None,
    estimate_targets: EstimateTargets = estimate_targets,
) -> Update:
    """Makes an update of one step of Adam on each batch of segments.

    With nothing normalised or scheduled, which only the learner knows, actors may compute the gradients, as in A3C.
    """
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    transformation = optimizer_of(optimizer, config, default)

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        returns = nets.init_statistics(()) if config.normalize_values else ()
        opt_state = transformation.init(params)
        return State(PolicyVariables(params, statistics), returns, opt_state, key, jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        (params, _), returns = state.variables, state.returns
        steps = batch.data._replace(observation=state.variables.normalized(batch.data.observation))
        if isinstance(returns, nets.RunningStatistics):
            found = estimate(networks, config, params, returns, steps, estimate_targets)
            returns = nets.update_statistics(returns, merge_time(found.vtrace.target), merge_time(found.mask))
        key = jax.random.fold_in(state.key, state.num_updates)  # Not split: XLA drops it if the loss ignores it.
        seen, normalized = state._replace(returns=returns), batch._replace(data=steps)
        grads, output = jax.grad(objective(loss), has_aux=True)(params, seen, normalized, key)
        before = steps_before(batch, has_action(batch.data.start_of_episode))
        opt_state = tell_counts(state.opt_state, steps=before, updates=batch.num_updates)
        params, opt_state = optimizer_step(transformation, grads, params, opt_state)
        variables = PolicyVariables(params, observe_segments(state.variables, batch.data))
        metrics = {"loss": output.loss, "grad_norm": global_norm(grads), **output.metrics}
        return State(variables, returns, opt_state, state.key, state.num_updates + 1), UpdateOutput(metrics)

    def published(state: State) -> dict[str, PolicyVariables]:
        return {"policy": state.variables}

    if config.normalize_observations or config.normalize_values or callable(config.entropy_cost):
        return Update(init, update, published)

    def gradient(variables: PolicyVariables, batch: ReplaySample[Step], key: jax.Array) -> PolicyVariables:
        return variables._replace(params=jax.grad(objective(loss), has_aux=True)(variables.params, (), batch, key)[0])

    def apply(state: State, grads: PolicyVariables) -> State:
        params, opt_state = optimizer_step(transformation, grads.params, state.variables.params, state.opt_state)
        return State(PolicyVariables(params, ()), (), opt_state, state.key, state.num_updates + 1)

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
    estimate_targets: EstimateTargets | None = None,
    make_update: Callable[[nets.PolicyValue, Loss, Config], Update] = make_update,
) -> Agent[nets.PolicyValue]:
    """Returns IMPALA as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, queue_size=config.queue_size),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(
            given(make_update, optimizer=optimizer, estimate_targets=estimate_targets),
            given(make_loss, estimate_targets=estimate_targets),
            config,
        ),
    )
