"""Recurrent SAC: soft actor-critic with a memory (Ni et al. 2022, "Recurrent Model-Free RL", 2110.05038).

The policy has a memory and the twin critics another, as in RDPG (Heess et al. 2015, 1512.04455): they act on and judge
all that was seen in an episode. They learn from sequences in replay. The actor's state is stored with each row, and a
sequence's first rows bring it up to date (burn-in), as in R2D2. The critics' state is stored nowhere, since actors
have no critics: it begins at zero with a sequence's first row, and sees all of its rows, the burnt-in ones too.

Differences from the paper:
  * Stored states and burn-in (R2D2), where the paper unrolls everything from zero.
  * Sequences run on into the next episode, where the memories begin anew. Rows after an episode's start count, also
    among the first rows of a sequence.
  * The last action and reward are no inputs by themselves: ``--wrapper observation_action_reward`` makes them some.
  * The observation reaches the layers behind the memory through the memory alone, without a shortcut.
  * All three gradients are taken at the parameters from before the update.
  * Each actor begins with `num_random_steps` uniform actions. Gradients are clipped.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, losses, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import Sequences, SequencesConfig
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Finite, Fraction, Positive, Rate, Sizes, check_order
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import Array, LossOutput, Nest, Params, ReplaySample, Step, has_action


@dataclasses.dataclass(frozen=True)
class Config(SequencesConfig):
    """Holds the hyperparameters of recurrent SAC, in addition to those of `SequencesConfig`.

    An "item" there is a sequence here, but `updates_per_step` counts updates for each row of an actor.

    Attributes:
        sequence_length: rows that are unrolled, T; one more is stored, to bootstrap from.
        sequence_period: rows from the start of one sequence to the next; at most `sequence_length` - `burn_in`, so
            that each row is learned from.
        burn_in: first rows of a sequence that only set the memories; see `networks.unroll_after_burn_in`.
        hidden_sizes: units of each hidden layer before a memory (after the convolutions, for images).
        core_size: units of the policy's memory, and of the one that both critics share.
        core: the kind of memory: "lstm", "gru", "gtrxl" or a `networks.GTrXL`.
        head_sizes: units of each hidden layer of the policy and of each critic behind it; critics see the action there.
        learning_rate: Adam's step size, for all three losses.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the target critics move at each update, in (0, 1].
        initial_temperature: alpha at the start, > 0.
        learn_temperature: whether to tune alpha to the target entropy.
        target_entropy: in nats; None for minus the number of action dimensions.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
        min_log_std: lower bound of the policy's log standard deviation, before the tanh.
        max_log_std: upper bound.
        max_priority_weight: eta, the weight of the largest error in a sequence's priority, where `prioritized`; the
            rest is their mean's.
    """

    batch_size: Count = 32
    updates_per_step: Positive = 1.0
    replay_size: Count = 10_000
    min_replay_size: Count = 50
    burn_in: CountFromZero = 10
    hidden_sizes: Sizes = (64,)
    core_size: Count = 64
    core: nets.CoreName | nets.GTrXL = dataclasses.field(default="lstm", kw_only=True)
    head_sizes: Sizes = (128,)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    target_entropy: Finite | None = None
    num_random_steps: CountFromZero = 1_000
    min_log_std: Finite = -10.0
    max_log_std: Finite = 2.0
    max_priority_weight: Fraction = 0.9

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, bounds in the wrong order, and sequences too short."""
        super().__post_init__()
        nets.check_core(self.core)
        check_order(self, "min_log_std", "max_log_std")
        if self.sequence_period > self.sequence_length - self.burn_in:
            raise ConfigError(
                f"Rows that no sequence learns from: sequence_period={self.sequence_period} must be at most "
                f"sequence_length - burn_in, found {self.sequence_length} - {self.burn_in}. Change one of the three."
            )


class CriticInput(NamedTuple):
    """Holds what critics get for a row: their memory sees the observation, the layers behind it the action, too."""

    observation: Nest
    action: Array


class Networks(NamedTuple):
    """Holds the networks of an environment.

    Attributes:
        policy: its outputs are `networks.TanhNormal`s of actions ``[B, A]``.
        critic: both critics; takes `CriticInput`s, and its outputs are a pair of values ``[B]``.
        action_shape: ``(A,)``.
    """

    policy: nets.RecurrentNetwork
    critic: nets.RecurrentNetwork
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds ReLU layers, a memory and layers behind it: for the policy, and once for both critics."""
    observations, actions = environment_spec.observations, environment_spec.actions
    action_size = specs.canonical_action_size(actions, "Recurrent SAC")
    log_stds = config.min_log_std, config.max_log_std

    def trunk(observation: Nest) -> jax.Array:
        nets.refuse_action_mask(observation)
        return nets.hidden_layers(observation, config.hidden_sizes, torso)

    def policy_head(features: Array, observation: Nest) -> nets.TanhNormal:
        del observation
        return nets.tanh_normal_action(features, action_size, config.head_sizes, *log_stds)

    def critic_heads(features: Array, seen: CriticInput) -> tuple[Array, Array]:
        return nets.twin_action_values(features, seen.action, config.head_sizes)

    return Networks(
        nets.recurrent_network(trunk, policy_head, config.core_size, observations, config.core),
        nets.recurrent_network(
            lambda seen: trunk(seen.observation),
            critic_heads,
            config.core_size,
            CriticInput(observations, actions),
            config.core,
        ),
        (action_size,),
    )


class PolicyState(NamedTuple):
    """Holds the state of the policy.

    Attributes:
        core: the memory's; an episode begins with the initial one.
        chooser: the number of steps taken; ``()`` in evaluation.
    """

    core: Nest
    chooser: Nest


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode.

    Its extras are the memory's state before the observation; in evaluation there are none.
    """
    network = networks.policy
    if evaluation:
        chooser = actors.mode_policy(_given, nets.mode)
    else:
        uniform = actors.uniform_action(networks.action_shape)
        chooser = actors.sampling_policy(_given, nets.sample, uniform, config.num_random_steps)

    def init(key: jax.Array) -> PolicyState:
        return PolicyState(network.initial_state, chooser.init(key))

    def act(params: Params, key: jax.Array, observation: Nest, state: PolicyState) -> tuple[Nest, PolicyState, Nest]:
        distribution, core = nets.step_one(network, params, observation, state.core)
        action, chosen, _ = chooser.act((), key, distribution, state.chooser)
        return action, PolicyState(core, chosen), () if evaluation else state.core

    def reset(state: PolicyState) -> PolicyState:
        return state._replace(core=network.initial_state)

    def begin(state: PolicyState, num_steps: jax.Array, num_envs: int) -> PolicyState:
        return state._replace(chooser=chooser.begin(state.chooser, num_steps, num_envs))

    extras_spec = () if evaluation else nets.state_spec(network)
    return actors.Policy(act, init, reset, begin=begin, extras_spec=extras_spec)


def _given(params: Params, distribution: Any) -> Any:
    """Returns the distribution that the policy is given as its observation."""
    del params
    return distribution


class State(NamedTuple):
    """Holds the training state of recurrent SAC.

    Attributes:
        policy: parameters.
        critics: parameters of both.
        target_critics: their moving averages.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, critics and log_alpha.
        key: PRNG key ``uint32[2]``.
    """

    policy: Params
    critics: Params
    target_critics: Params
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    key: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics, policy and temperature.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Params, State, ReplaySample[Step], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Step], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Step], jax.Array], LossOutput]


def distributions(networks: Networks, policy: Params, steps: Step, config: Config) -> nets.TanhNormal:
    """Returns the policy's distributions ``[B, T + 1]`` at all rows, from the state stored with the first one."""
    stored = jax.tree.map(lambda x: x[:, 0], steps.extras)
    start = jnp.asarray(steps.start_of_episode)
    found: nets.TanhNormal = nets.unroll_after_burn_in(
        networks.policy, policy, steps.observation, start, stored, config.burn_in
    )
    return found


def values(
    networks: Networks, critics: Params, steps: Step, action: Array, config: Config
) -> tuple[jax.Array, jax.Array]:
    """Returns both critics' values ``[B, T + 1]`` of actions ``[B, T + 1, A]`` at all rows, from a memory of zeros."""
    start = jnp.asarray(steps.start_of_episode)
    zeros = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(start), *x.shape)), networks.critic.initial_state)
    seen = CriticInput(steps.observation, action)
    q_1, q_2 = nets.unroll_after_burn_in(networks.critic, critics, seen, start, zeros, config.burn_in)
    return q_1, q_2


CriticTarget = Callable[[Networks, State, ReplaySample[Step], jax.Array, Config], jax.Array]
"""``(networks, state, batch, key, config) -> targets [B, T]``."""


def critic_target(
    networks: Networks, state: State, batch: ReplaySample[Step], key: jax.Array, config: Config
) -> jax.Array:
    """Returns the critics' targets ``[B, T]``: n rewards plus the discounted soft value of what was seen until then."""
    steps = batch.data
    action, log_prob = nets.sample_and_log_prob(distributions(networks, state.policy, steps, config), key)
    q_1, q_2 = values(networks, state.target_critics, steps, action, config)
    v = jnp.minimum(q_1, q_2) - jnp.exp(state.log_alpha) * log_prob  # [B, T + 1]; SAC's eq. 3, of histories
    r_t, discount_t = (jnp.asarray(x, jnp.float32)[:, :-1] for x in (steps.reward, steps.discount))
    mask = has_action(jnp.asarray(steps.start_of_episode))
    return losses.n_step_returns(r_t, config.discount * discount_t, v[:, 1:], mask, n=config.n_step)  # eq. 2


def make_losses(networks: Networks, config: Config, critic_target: CriticTarget = critic_target) -> Losses:
    """Builds SAC's equations 5 and 9 of histories, on a batch of `Step`s ``[B, T + 1, ...]``.

    Rows without an action, and burnt-in ones, have no loss (`losses.loss_mask`).
    """
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        steps = batch.data
        target = jax.lax.stop_gradient(critic_target(networks, state, batch, key, config))
        q_1, q_2 = (q[:, :-1] for q in values(networks, critics, steps, steps.action, config))
        mask = losses.loss_mask(jnp.asarray(steps.start_of_episode), config.burn_in)  # [B, T]
        # Masked before they are squared, since the gradient of a square multiplies by them: 0 * nan.
        error_1, error_2 = losses.masked(q_1 - target, mask), losses.masked(q_2 - target, mask)
        squares = 0.5 * (jnp.square(error_1) + jnp.square(error_2))  # [B, T], eq. 5
        per_item = jnp.sum(squares, axis=1) / config.sequence_length  # [B]
        metrics = {"q": losses.masked_mean(q_1, mask), "loss_mask": jnp.mean(mask)}
        priorities = losses.sequence_priorities(error_1, mask, config.max_priority_weight)
        return importance_weighted_loss(per_item, metrics, batch, config, priorities)

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        steps = batch.data
        action, log_prob = nets.sample_and_log_prob(distributions(networks, policy, steps, config), key)
        q_1, q_2 = values(networks, state.critics, steps, action, config)
        loss = jnp.exp(state.log_alpha) * log_prob - jnp.minimum(q_1, q_2)  # [B, T + 1], eq. 9
        mask = losses.loss_mask(jnp.asarray(steps.start_of_episode), config.burn_in)
        entropy = -losses.masked_mean(log_prob[:, :-1], mask)
        return LossOutput(losses.masked_mean(loss[:, :-1], mask), {"entropy": entropy})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Step], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a gradient step each on critics, policy and temperature."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critics = networks.policy.init(policy_key), networks.critic.init(critic_key)
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        opt_states = (
            optimizers["policy"].init(policy),
            optimizers["critic"].init(critics),
            optimizers["temperature"].init(log_alpha),
        )
        return State(policy, critics, jax.tree.map(jnp.copy, critics), log_alpha, opt_states, key)

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        critic_grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        policy_grads, policy_output = jax.grad(objective(losses.policy, metrics=["entropy"]), has_aux=True)(
            state.policy, state, batch, policy_key
        )

        policy_opt, critics_opt, alpha_opt = state.opt_states
        policy, policy_opt = optimizer_step(optimizers["policy"], policy_grads, state.policy, policy_opt)
        critics, critics_opt = optimizer_step(optimizers["critic"], critic_grads, state.critics, critics_opt)
        log_alpha = state.log_alpha
        if config.learn_temperature:
            entropy = policy_output.metrics["entropy"]
            alpha_grads, _ = jax.grad(objective(losses.temperature), has_aux=True)(log_alpha, state, batch, entropy)
            log_alpha, alpha_opt = optimizer_step(optimizers["temperature"], alpha_grads, log_alpha, alpha_opt)
        targets = optax.incremental_update(critics, state.target_critics, config.tau)
        metrics = {
            "critic_loss": output.loss,
            **output.metrics,
            "policy_loss": policy_output.loss,
            **policy_output.metrics,
            "temperature": jnp.exp(state.log_alpha),
        }
        opt_states = policy_opt, critics_opt, alpha_opt
        return State(policy, critics, targets, log_alpha, opt_states, key), UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.policy})


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
    make_policy: MakePolicy[Networks, Config] = make_policy,
    make_losses: Callable[[Networks, Config], Losses] = make_losses,
    optimizer: Optimizers | None = None,
    make_update: Callable[[Networks, Losses, Config], Update] = make_update,
) -> Agent[Networks]:
    """Returns recurrent SAC as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Sequences(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
