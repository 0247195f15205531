"""CQL: conservative Q-learning (Kumar et al. 2020, "Conservative Q-Learning for Offline RL", 2006.04779).

SAC with a penalty that lowers the critics at actions of the policy and at random ones, and raises them at the data's.
The values of the policy are then not overestimated, and it stays where data are. This is the paper's CQL(H), on SAC.

Differences from the paper:
  * The weight of the penalty is fixed; the paper can also tune it to a target gap by dual descent.
  * The penalty's integral is estimated with uniform actions and with the policy's in the same state; the authors'
    code adds the policy's actions in the next state.
  * No first updates that clone the data.
  * All three gradients are taken at the parameters from before the update.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Step sizes, three layers and targets without SAC's entropy term are those of the authors' code; the TD errors have
    the paper's factor 1/2, which that code lacks: a `cql_weight` of 5 here is its ``min_q_weight`` of 10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import (
    Count,
    CountFromZero,
    Finite,
    NotNegative,
    Positive,
    Rate,
    Sizes,
    check_order,
)
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition

Critics = tuple[Params, Params]


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of CQL, in addition to those of `ReplayConfig`.

    Attributes:
        cql_weight: alpha of the paper, the weight of the penalty beside the TD errors; 0 leaves SAC's losses,
            with `backup_entropy`.
        num_sampled_actions: uniform actions, and as many of the policy, that estimate the penalty's integral.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        learning_rate: Adam's step size for the critics.
        policy_learning_rate: Adam's step size for policy and temperature.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the target critics move at each update, in (0, 1].
        initial_temperature: alpha at the start, > 0.
        learn_temperature: whether to tune alpha to the target entropy.
        backup_entropy: whether targets have SAC's entropy term.
        target_entropy: in nats; None for minus the number of action dimensions (SAC, appendix D).
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
        min_log_std: lower bound of the policy's log standard deviation, before the tanh.
        max_log_std: upper bound.
    """

    cql_weight: NotNegative = 5.0
    num_sampled_actions: Count = 10
    hidden_sizes: Sizes = (256, 256, 256)
    learning_rate: Positive | Schedule = 3e-4
    policy_learning_rate: Positive | Schedule = 1e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    backup_entropy: bool = False
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
    """Builds a tanh-Gaussian policy, and one critic that is applied to two sets of parameters."""
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    return nets.actor_critic_networks(
        environment_spec,
        "CQL",
        policy=lambda observation, size: nets.tanh_normal_action(observation, size, sizes, *log_stds, torso),
        critic=lambda observation, action: nets.action_value(observation, action, sizes, torso),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.mode)
    uniform = actors.uniform_action(networks.action_shape)
    return actors.sampling_policy(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of CQL.

    Attributes:
        policy: parameters.
        critics: a pair of parameters.
        target_critics: their moving averages.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, critics and log_alpha.
        key: PRNG key ``uint32[2]``.
    """

    policy: Params
    critics: Critics
    target_critics: Critics
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    key: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics, policy and temperature.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``, of the TD errors.
        conservative: ``(critics, state, batch, key) -> LossOutput``, the penalty on the critics.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Critics, State, ReplaySample[Transition], jax.Array], LossOutput]
    conservative: Callable[[Critics, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Transition], jax.Array], LossOutput]


def sampled_log_sum_exp(q: jax.Array, log_density: jax.Array) -> jax.Array:
    """Estimates log of the integral of exp q(s, a) over actions a, ``[B]`` (appendix F).

    log (1/N sum_i exp(q_i) / p_i): importance sampling, of actions drawn with density p.

    Args:
        q: values of N sampled actions, ``[N, B]``.
        log_density: their log p, ``[N, B]``.
    """
    return jax.nn.logsumexp(q - jax.lax.stop_gradient(log_density), axis=0) - jnp.log(q.shape[0])


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds SAC's losses and the penalty of equation 4, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, q_at = networks.policy.apply, networks.critic.apply
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def twins_at(critics: Critics, observation: Nest, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        q_1, q_2 = (q_at(critic, observation, action) for critic in critics)
        return q_1, q_2

    def critic_loss(critics: Critics, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        a_t, log_prob_t = nets.sample_and_log_prob(policy_at(state.policy, o_t), key)
        v_t = jnp.minimum(*twins_at(state.target_critics, o_t, a_t))
        if config.backup_entropy:
            v_t -= jnp.exp(state.log_alpha) * log_prob_t
        target = jax.lax.stop_gradient(r_t + discount_t * v_t)
        q_1, q_2 = twins_at(critics, o_tm1, a_tm1)
        loss = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # [B]
        return importance_weighted_loss(loss, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))

    def sampled_actions(state: State, observation: Nest, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns uniform actions and the policy's ``[2 N, B, A]``, and the logarithms of their densities."""
        uniform_key, policy_key = jax.random.split(key)
        distribution = policy_at(state.policy, observation)
        keys = jax.random.split(policy_key, config.num_sampled_actions)
        own, log_prob = jax.vmap(lambda key: nets.sample_and_log_prob(distribution, key))(keys)
        uniform = jax.random.uniform(uniform_key, own.shape, minval=-1.0, maxval=1.0)
        log_uniform = jnp.full(log_prob.shape, -own.shape[-1] * jnp.log(2.0))
        return jnp.concatenate([uniform, own]), jnp.concatenate([log_uniform, log_prob])

    def conservative_loss(
        critics: Critics, state: State, batch: ReplaySample[Transition], key: jax.Array
    ) -> LossOutput:
        o_tm1, a_tm1 = batch.data.observation, batch.data.action
        actions, log_density = jax.lax.stop_gradient(sampled_actions(state, o_tm1, key))
        gaps = []
        for critic in critics:
            q_sampled = jax.vmap(q_at, in_axes=(None, None, 0))(critic, o_tm1, actions)  # [2 N, B]
            gaps.append(sampled_log_sum_exp(q_sampled, log_density) - q_at(critic, o_tm1, a_tm1))  # [B], eq. 4
        loss = importance_weighted_loss(gaps[0] + gaps[1], {}, batch, config).loss
        return LossOutput(loss, {"conservative_gap": jnp.mean(gaps[0])})

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1 = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(policy_at(policy, o_tm1), key)
        q = jnp.minimum(*twins_at(state.critics, o_tm1, action))
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - q)
        return LossOutput(loss, {"entropy": -jnp.mean(log_prob)})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, conservative_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a gradient step each on critics, with the penalty, on policy and on temperature (algorithm 1)."""
    of_critics, of_rest = (
        adam(rate, config.max_grad_norm, epsilon=config.adam_epsilon)
        for rate in (config.learning_rate, config.policy_learning_rate)
    )
    optimizers = optimizers_of(optimizer, config, policy=of_rest, critic=of_critics, temperature=of_rest)

    def init(key: jax.Array) -> State:
        key, policy_key, *critic_keys = jax.random.split(key, 4)
        policy, critics = networks.policy.init(policy_key), tuple(map(networks.critic.init, critic_keys))
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": critics, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        return State(policy, critics, jax.tree.map(jnp.copy, critics), log_alpha, opt_states, key)

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, critics_key, policy_key = jax.random.split(state.key, 3)
        critic_key, penalty_key = jax.random.split(critics_key)

        def critic_loss(critics: Critics) -> LossOutput:
            td = losses.critic(critics, state, batch, critic_key)
            penalty = losses.conservative(critics, state, batch, penalty_key)
            loss = td.loss + config.cql_weight * penalty.loss
            return LossOutput(loss, {**td.metrics, **penalty.metrics}, td.priorities)

        critic_grads, output = jax.grad(objective(critic_loss), has_aux=True)(state.critics)
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
        state = State(policy, critics, targets, log_alpha, (policy_opt, critics_opt, alpha_opt), key)
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
    """Returns CQL as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
