"""DroQ: dropout Q-functions (Hiraoka et al. 2021, "Dropout Q-Functions for Doubly Efficient RL", 2110.02034).

SAC with many critic steps for each environment step, like REDQ, but with two critics instead of an ensemble: dropout
makes each of their values a random draw, and layer normalisation keeps them from diverging.

Differences from the paper:
  * One default dropout rate; the paper has one for each environment.
  * The target entropy is minus the number of action dimensions; the paper's differ by environment.
  * A policy step climbs the critics from before the last of the G steps on them.
  * The logarithm of the temperature is learned.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Finite, OpenFraction, Positive, Rate, Sizes, check_order
from agentkit.agents.common.soft_policy import SoftPolicyStep, soft_policy_step
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import Array, LossOutput, Nest, Params, ReplaySample, Transition

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of DroQ, in addition to those of `ReplayConfig`.

    Attributes:
        dropout_rate: probability that a hidden unit of a critic is dropped, in [0, 1).
        policy_delay: critic steps for each step of policy and temperature; G in the paper, as `updates_per_step` is.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
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
    """

    min_replay_size: Count = 5_000
    updates_per_step: Positive = 20.0
    updates_per_call: Count = 20
    dropout_rate: OpenFraction = 0.01
    policy_delay: Count = 20
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    target_entropy: Finite | None = None
    num_random_steps: CountFromZero = 5_000
    min_log_std: Finite = -10.0
    max_log_std: Finite = 2.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "min_log_std", "max_log_std")


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a tanh-Gaussian policy, and one critic of ``params, key, observation, action``; the key drops units."""
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(actions, "DroQ")
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    policy = nets.make_network(lambda o: nets.tanh_normal_action(o, size, sizes, *log_stds, torso), observations)

    def value(observation: Nest, action: Array) -> Array:
        observation = nets.encode_inputs(observations, observation)
        return nets.dropout_critic(observation, action, sizes, config.dropout_rate, torso)

    critic = hk.transform(value)
    examples = jax.tree.map(lambda x: x[None], (specs.zeros(observations), specs.zeros(actions)))
    return Networks(policy, nets.Network(lambda key: critic.init(key, *examples), critic.apply), (size,))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.mode)
    uniform = actors.uniform_action(networks.action_shape)
    return actors.sampling_policy(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of DroQ.

    Attributes:
        policy: parameters.
        critics: parameters of both, leaves ``[2, ...]``.
        target_critics: their moving averages.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, critics and log_alpha.
        policy_metrics: of the newest policy step, to log between two such steps.
        key: PRNG key ``uint32[2]``.
        num_updates: critic steps taken, int32 ``[]``.
    """

    policy: Params
    critics: Params
    target_critics: Params
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    policy_metrics: dict[str, jax.Array]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics, policy and temperature.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 2, on a batch of `Transition`s ``[B, ...]``."""
    policy_at = networks.policy.apply
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, 0, None, None))  # [2, B]
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        keys = jax.random.split(key, 1 + 2 * NUM_CRITICS)
        sample_key, keys_tm1, keys_t = keys[0], keys[1 : 1 + NUM_CRITICS], keys[1 + NUM_CRITICS :]
        a_t, log_prob_t = nets.sample_and_log_prob(policy_at(state.policy, o_t), sample_key)
        q_t = critics_at(state.target_critics, keys_t, o_t, a_t)  # Units of the targets are dropped, too.
        v_t = jnp.min(q_t, axis=0) - jnp.exp(state.log_alpha) * log_prob_t
        target = jax.lax.stop_gradient(r_t + discount_t * v_t)  # [B]
        q_tm1 = critics_at(critics, keys_tm1, o_tm1, a_tm1)
        errors = q_tm1 - target[None]  # [2, B]
        loss = 0.5 * jnp.sum(jnp.square(errors), axis=0)
        metrics = {"q": jnp.mean(q_tm1), "critics_gap": jnp.mean(jnp.abs(q_tm1[0] - q_tm1[1]))}
        return importance_weighted_loss(loss, metrics, batch, config, priorities=jnp.mean(jnp.abs(errors), axis=0))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, keys = batch.data.observation, jax.random.split(key, 1 + NUM_CRITICS)
        action, log_prob = nets.sample_and_log_prob(policy_at(policy, o_tm1), keys[0])
        q = jnp.mean(critics_at(state.critics, keys[1:], o_tm1, action), axis=0)
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - q)
        return LossOutput(loss, {"entropy": -jnp.mean(log_prob)})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, and at every `policy_delay`-th update on policy and temperature (algorithm 2)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        keys = jax.random.split(key, 2 + NUM_CRITICS)
        policy, critics = networks.policy.init(keys[1]), jax.vmap(networks.critic.init)(keys[2:])
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": critics, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        metrics, targets = {"policy_loss": jnp.zeros(()), "entropy": jnp.zeros(())}, jax.tree.map(jnp.copy, critics)
        return State(policy, critics, targets, log_alpha, opt_states, metrics, keys[0], jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        policy_opt, critics_opt, alpha_opt = state.opt_states
        critics, critics_opt = optimizer_step(optimizers["critic"], grads, state.critics, critics_opt)
        targets = optax.incremental_update(critics, state.target_critics, config.tau)

        # A conditional copies all that it returns, so it returns no more than what may change.
        num_updates = state.num_updates + 1
        unchanged = SoftPolicyStep(state.policy, policy_opt, state.log_alpha, alpha_opt, state.policy_metrics)
        policy, policy_opt, log_alpha, alpha_opt, policy_metrics = jax.lax.cond(
            num_updates % config.policy_delay == 0,
            lambda: soft_policy_step(losses, optimizers, config.learn_temperature, state, batch, policy_key),
            lambda: unchanged,
        )
        alpha, opt_states = jnp.exp(state.log_alpha), (policy_opt, critics_opt, alpha_opt)
        metrics = {"critic_loss": output.loss, **output.metrics, **policy_metrics, "temperature": alpha}
        state = State(policy, critics, targets, log_alpha, opt_states, policy_metrics, key, num_updates)
        return state, UpdateOutput(metrics, output.priorities)

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
    """Returns DroQ as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
