"""PPO: proximal policy optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", 1707.06347).

On-policy (algorithm 1): N environments fill segments of T rows, the learner takes each once, makes K epochs of
minibatches of M rows over them, and publishes the parameters that choose the next action. Advantages are GAE(lambda)
(Schulman et al. 2016).

With a `core_size` policy and value have a memory (a core, such as an LSTM). It begins a segment with the state that the
actor had there, and minibatches are of whole segments.

Differences from the paper (most are of the authors' code, github.com/openai/baselines, ppo2):
  * Advantages are normalised in each minibatch, gradients clipped to a global norm, weights begin orthogonal,
    those of the policy's last layer small. Policy and value share nothing but the convolutions of images;
    with a `core_size` (the paper has no memory) they share ReLU layers and a memory, with a linear head each.
  * Observations and returns are normalised by running statistics, which are learned and published with the
    parameters. An update uses those of the acting policy for observations, and takes in its data afterwards.
  * Truncated episodes and unfinished segments bootstrap.
  * An episode's final observation takes one of the T rows; only its value is of use.
  * Gaussian actions are clipped to the bounds on their way to the environment; the densities are of the
    unclipped ones. The standard deviation does not depend on the observation.
  * The KL of the penalty (eq. 8) is estimated from the actions taken, and the clip stays beside it.
  * Optional: a clipped value loss, an end of the epochs by the KL, schedules.

Defaults fit many environments: 4 minibatches of at least 512 rows, and a step size of 1e-3 that stays. With one
environment, these are the paper's for MuJoCo (table 3), without clipped gradients, and with nothing normalised::

    Config(
        segment_length=2_048,  # T
        num_epochs=10,  # K
        num_minibatches=32,  # M = 64 rows
        learning_rate=3e-4,
        discount=0.99,
        gae_lambda=0.95,
        clip_epsilon=0.2,
        entropy_cost=0.0,
        max_grad_norm=None,
        normalize_observations=False,
        normalize_values=False,
        normalize_advantages="none",
    )
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, PolicyVariables, stochastic_policy, with_normalized_observations
from agentkit.agents.common.advantages import (
    EstimateAdvantages,
    Minibatch,
    Trajectories,
    compute_advantages,
    observe_segments,
    with_rows,
)
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.epochs import Fitted, Stoppable, means_until, minibatch_orders, rows_at, step_keys, until
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError, unknown_name
from agentkit.learning import (
    Loss,
    Schedule,
    Update,
    UpdateOutput,
    adam,
    objective,
    optimizer_step,
    steps_before,
    value_in_update,
)
from agentkit.types import Array, LossOutput, Params, ReplaySample, Step

if TYPE_CHECKING:
    import optax

AdvantageNormalization = Literal["minibatch", "batch", "none"]


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of PPO, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value; with a `core_size` of the shared ReLU layers.
        core_size: units of a memory behind `hidden_sizes`, which policy and value then share; None for none.
        core: the kind of memory, where there is a `core_size`: "lstm", "gru", "gtrxl" or a `networks.GTrXL`.
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        num_epochs: passes over the data of an update.
        num_minibatches: gradient steps per epoch; divides batch_size * segment_length, with a memory batch_size.
        clip_epsilon: the ratio's clip (eq. 7).
        kl_cost: beta, weight of the KL penalty (eq. 8); with an `adaptive_kl_target` at first.
        adaptive_kl_target: d_targ, the KL of an update that `kl_cost` is adapted to (section 4); None: it stays.
        value_clip: clip of the value's move from before the update, in units of the value network; None for none.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus (eq. 9).
        target_kl: the epochs end where a minibatch's KL from the acting policy is above this; None for never.
        normalize_observations: whether to normalise vectors of floats by their running mean and deviation.
        normalize_values: whether the value network predicts normalised returns.
        normalize_advantages: to mean 0 and deviation 1 in each "minibatch", once in the whole "batch", or "none".
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: Sizes = (64, 64)
    core_size: Count | None = None
    core: nets.CoreName | nets.GTrXL = dataclasses.field(default="lstm", kw_only=True)
    gae_lambda: Fraction = 0.95
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 0.5
    adam_epsilon: Positive = 1e-8
    num_epochs: Count = 10
    num_minibatches: Count = 4
    clip_epsilon: Positive | Schedule = 0.2
    kl_cost: NotNegative = 0.0
    adaptive_kl_target: Positive | None = None
    value_clip: Positive | None = None
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative | Schedule = 0.0
    target_kl: Positive | None = None
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: AdvantageNormalization = "minibatch"
    initial_std: Positive = 1.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and a KL cost that cannot adapt."""
        super().__post_init__()
        nets.check_core(self.core)
        if self.normalize_advantages not in get_args(AdvantageNormalization):
            raise unknown_name("normalize_advantages", self.normalize_advantages, get_args(AdvantageNormalization))
        if self.adaptive_kl_target is not None and self.kl_cost == 0:
            raise ConfigError(
                f"adaptive_kl_target={self.adaptive_kl_target} doubles and halves kl_cost, which must be > 0 for that, "
                f"found {self.kl_cost}. The paper says that the first value hardly matters: set kl_cost=1."
            )


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds tanh layers for the policy and others for the value; with a memory both share it and ReLU layers."""
    if config.core_size is None:
        return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std, torso)
    return nets.recurrent_policy_value(
        environment_spec, config.hidden_sizes, config.initial_std, config.core_size, torso, config.core
    )


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy, on normalised observations; in evaluation takes its mode."""
    del config
    return with_normalized_observations(stochastic_policy(networks, evaluation))


class State(NamedTuple):
    """Holds the training state of PPO.

    Attributes:
        variables: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: of the parameters.
        kl_cost: beta, ``[]``.
        key: PRNG key ``uint32[2]``.
        num_updates: batches learned from, int32 ``[]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics
    opt_state: optax.OptState
    kl_cost: jax.Array
    key: jax.Array
    num_updates: jax.Array


def make_loss(networks: nets.PolicyValue, config: Config) -> Loss:
    """Builds the surrogate and its costs (eq. 7-9), on a minibatch of `Minibatch` rows ``[M, ...]``."""

    def loss(params: Params, state: State, batch: ReplaySample[Minibatch], key: jax.Array) -> LossOutput:
        del key
        clip_epsilon, entropy_cost = (value_in_update(x, batch) for x in (config.clip_epsilon, config.entropy_cost))
        rows = batch.data
        distribution, value = networks.apply(params, rows.observation, rows.memory)
        log_ratio = distribution.log_prob(rows.extras.sample) - rows.extras.log_prob
        # Rows without an action have arbitrary log-ratios, whose exp may overflow.
        log_ratio = jnp.where(rows.mask > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)  # r_t of eq. 6
        advantage = rows.advantage
        if config.normalize_advantages == "minibatch":
            advantage = losses.standardize(advantage, rows.mask)
        mean = functools.partial(losses.masked_mean, mask=rows.mask)
        policy_loss = mean(losses.clipped_policy_loss(ratio, advantage, clip_epsilon))  # -L^CLIP, eq. 7
        value_losses = losses.clipped_value_loss(value, rows.old_value, rows.target, config.value_clip)
        value_loss = mean(value_losses)  # L^VF / 2
        entropy = mean(distribution.entropy())  # S
        kl = mean(losses.approximate_kl(log_ratio))
        penalty = state.kl_cost * kl if config.kl_cost > 0 else 0.0  # eq. 8
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": kl,
            "clipped": mean((jnp.abs(ratio - 1.0) > clip_epsilon).astype(jnp.float32)),
        }
        # Minus eq. 9: its c_1 is half the value_cost, its c_2 the entropy_cost.
        total = policy_loss + config.value_cost * value_loss + penalty - entropy_cost * entropy
        return LossOutput(total, metrics)

    return loss


def estimate_advantages(segments: Trajectories, config: Config) -> jax.Array:
    """Returns the advantages ``[B, T]`` by GAE (eq. 11 and 12) of segments.

    Value T + 1 of a segment is there to bootstrap from. So is that of an episode's final observation, which is one of
    the T rows: the row before it bootstraps from it, unless the discount is 0 there, and no advantage comes back over
    it from the next episode.
    """
    reward, discount, values, mask, _ = segments
    value, next_value = values[:, :-1], values[:, 1:]  # [B, T]
    delta = reward + discount * next_value - value  # eq. 12
    decay = discount * config.gae_lambda * jnp.pad(mask[:, 1:], [(0, 0), (0, 1)], constant_values=1.0)

    def add(next_advantage: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = row
        advantage = delta + decay * next_advantage  # eq. 11, from the last row to the first
        return advantage, advantage

    _, advantage = jax.lax.scan(add, jnp.zeros_like(delta[:, 0]), (delta.T, decay.T), reverse=True)
    return advantage.T


def make_update(
    networks: nets.PolicyValue,
    loss: Loss,
    config: Config,
    optimizer: Optimizer | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Takes all epochs over the segments of one batch as one update (algorithm 1)."""
    # Adam is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    step_size = config.learning_rate if optimizer is None else 1.0
    rates = ["learning_rate"] if optimizer is None else []
    transformation = optimizer_of(optimizer, config, adam(1.0, config.max_grad_norm, epsilon=config.adam_epsilon))
    advantages = functools.partial(
        compute_advantages,
        networks,
        estimate=functools.partial(estimate_advantages, config=config),
        discount=config.discount,
        normalize_values=config.normalize_values,
    )
    needed = ["kl"] if (config.target_kl, config.adaptive_kl_target) != (None, None) else []

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        variables, returns = PolicyVariables(params, statistics), nets.init_statistics(())
        kl_cost, num_updates = jnp.asarray(config.kl_cost, jnp.float32), jnp.zeros((), jnp.int32)
        return State(variables, returns, transformation.init(params), kl_cost, key, num_updates)

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, epochs_key = jax.random.split(state.key)
        rows, returns, explained_variance = advantages(state.variables, state.returns, batch.data)
        num_steps = steps_before(batch, rows.mask)  # Of the environments: a final observation is a row and no step.
        if config.normalize_advantages == "batch":
            rows = rows._replace(advantage=losses.standardize(rows.advantage, rows.mask))
        batch = batch._replace(num_steps=num_steps)
        learning_rate = jnp.asarray(value_in_update(step_size, batch))

        def step(learned: Fitted, turn: tuple[Array, Array]) -> tuple[Fitted, dict[str, Array]]:
            (params, opt_state), (indices, loss_key) = learned, turn
            minibatch = with_rows(batch, rows_at(rows, indices))
            grads, output = jax.grad(objective(loss, metrics=needed), has_aux=True)(params, state, minibatch, loss_key)
            return optimizer_step(transformation, grads, params, opt_state, learning_rate), output.metrics

        is_too_far = None if config.target_kl is None else lambda metrics: metrics["kl"] > config.target_kl
        step_until = until(is_too_far, step)

        def epoch(learned: Stoppable[Fitted], turns: tuple[Array, Array]) -> tuple[Stoppable[Fitted], dict[str, Array]]:
            return jax.lax.scan(step_until, learned, turns)  # a step for each minibatch

        # Algorithm 1: K epochs (`num_epochs`) of minibatches of M rows (all rows / `num_minibatches`).
        orders = minibatch_orders(epochs_key, len(rows.mask), config.num_epochs, config.num_minibatches, rows.mask)
        keys = step_keys(epochs_key, config.num_epochs, config.num_minibatches)
        learned = (state.variables.params, state.opt_state), jnp.asarray(False)
        ((params, opt_state), _), metrics = jax.lax.scan(epoch, learned, (orders, keys))
        metrics = means_until(metrics)
        variables = PolicyVariables(params, observe_segments(state.variables, batch.data))
        kl_cost = state.kl_cost
        if config.adaptive_kl_target is not None:
            kl_key = jax.random.fold_in(state.key, 2**32 - 1)
            kl = loss(params, state, with_rows(batch, rows), kl_key).metrics["kl"]  # of the whole update
            kl_cost = adapt_kl_cost(kl_cost, kl, config.adaptive_kl_target)
        metrics |= {"kl_cost": state.kl_cost, "explained_variance": explained_variance}
        metrics |= dict.fromkeys(rates, learning_rate)
        return State(variables, returns, opt_state, kl_cost, key, state.num_updates + 1), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.variables})


def adapt_kl_cost(kl_cost: jax.Array, kl: jax.Array, target: float) -> jax.Array:
    """Halves beta where the KL is below target / 1.5, doubles it where it is above 1.5 target (section 4)."""
    factor = jnp.where(kl < target / 1.5, 0.5, jnp.where(kl > target * 1.5, 2.0, 1.0))
    return kl_cost * factor


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
    """Returns PPO as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, num_minibatches=config.num_minibatches),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(
            given(make_update, optimizer=optimizer, estimate_advantages=estimate_advantages), make_loss, config
        ),
    )
