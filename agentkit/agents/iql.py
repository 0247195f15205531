"""IQL: implicit Q-learning (Kostrikov et al. 2021, "Offline RL with Implicit Q-Learning", 2110.06169).

The value of a state is an upper expectile of the values of the data's actions there, so no action outside of the data
is ever evaluated; the policy imitates the data's actions, the better ones more.

Differences from the paper:
  * The gradients of value and critics are taken at the parameters from before the update, as if at once; in the paper
    the critics learn from the value that has just taken its step.
  * The policy's weights come from the critics as this update has just made them; the authors' code takes the target
    critics. Both take the value that has just taken its step.
  * One step size throughout; the paper lets the policy's fall by a cosine. No dropout.
  * Learning from data alone, rewards are scaled by the data's range of returns, as in the authors' code on locomotion,
    to which a temperature of 1/3 belongs (`scale_rewards`). Values are in this scale. Online they are as they are.
    AntMaze's rewards of 0 and 1 the authors leave as large, and make less by 1: take ``scale_rewards=False`` for such
    data, and subtract 1 from their rewards before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, losses, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Positive, ProperFraction, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of IQL, in addition to those of `ReplayConfig`.

    Attributes:
        expectile: tau of the paper, in (0, 1): at 0.5 values are those of the data's policy, near 1 of its best.
        temperature: 1 / beta, by which an advantage is divided before the exponential, > 0; smaller is greedier.
        max_weight: the largest weight of an action, > 0.
        hidden_sizes: units of each hidden layer of each network.
        learning_rate: Adam's step size, for all three losses.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the target critics move at each update, in (0, 1].
        scale_rewards: whether rewards of a data set are multiplied by the longest episode's length, divided by the
            distance of the largest return from the smallest (`datasets.scale_rewards`); 1,000 / range in D4RL.
    """

    expectile: ProperFraction = 0.7
    temperature: Positive = 1.0 / 3.0
    max_weight: Positive = 100.0
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    scale_rewards: bool = True


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> DiagonalNormal`` of ``[B, A]``, its means in [-1, 1].
        critics: ``observation [B, ...], action [B, A] -> (q [B], q [B])``, two critics that share nothing.
        value: ``observation [B, ...] -> [B]``.
    """

    policy: nets.Network
    critics: nets.Network
    value: nets.Network


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a policy, twin critics and a value, for an environment of continuous actions in [-1, 1]."""
    sizes = config.hidden_sizes
    policy, critics, _ = nets.actor_critic_networks(
        environment_spec,
        "IQL",
        policy=lambda observation, size: nets.gaussian_action(observation, size, sizes, torso),
        critic=lambda observation, action: nets.twin_action_values(observation, action, sizes, torso),
    )
    value = nets.make_network(
        lambda observation: nets.state_value(observation, sizes, torso), environment_spec.observations
    )
    return Networks(policy, critics, value)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy and clips to [-1, 1]; in evaluation takes its mean."""
    del config
    return actors.clipped_gaussian_policy(networks.policy.apply, evaluation)


class State(NamedTuple):
    """Holds the training state of IQL.

    Attributes:
        policy: parameters.
        critics: parameters of both.
        value: parameters.
        target_critics: moving average of the critics'.
        opt_states: of policy, critics and value.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    policy: Params
    critics: Params
    value: Params
    target_critics: Params
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of value, critics and policy.

    Attributes:
        value: ``(value, state, batch, key) -> LossOutput``.
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the new critics and value in `state`.
    """

    value: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds equations 5 to 7, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, twins_at, v_at = networks.policy.apply, networks.critics.apply, networks.value.apply

    def value_loss(value: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1 = batch.data.observation, batch.data.action
        q_tm1, v_tm1 = jnp.minimum(*twins_at(state.target_critics, o_tm1, a_tm1)), v_at(value, o_tm1)
        loss = losses.expectile_loss(q_tm1 - v_tm1, config.expectile)  # [B], eq. 5
        return importance_weighted_loss(loss, {"value": jnp.mean(v_tm1)}, batch, config)

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        target = r_t + discount_t * v_at(state.value, o_t)  # [B]
        q_1, q_2 = twins_at(critics, o_tm1, a_tm1)
        loss = jnp.square(target - q_1) + jnp.square(target - q_2)  # eq. 6
        return importance_weighted_loss(loss, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(target - q_1))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1 = batch.data.observation, batch.data.action
        advantage = jnp.minimum(*twins_at(state.critics, o_tm1, a_tm1)) - v_at(state.value, o_tm1)
        weights = losses.exponential_weights(advantage, config.temperature, config.max_weight)
        loss = -jnp.mean(weights * policy_at(policy, o_tm1).log_prob(a_tm1))  # eq. 7
        return LossOutput(loss, {})

    return Losses(value_loss, critic_loss, policy_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step each on value, critics and policy, and moves the target critics (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, value=default, critic=default, policy=default)

    def init(key: jax.Array) -> State:
        key, policy_key, rest_key = jax.random.split(key, 3)
        critics_key, value_key = jax.random.split(rest_key)
        policy, critics = networks.policy.init(policy_key), networks.critics.init(critics_key)
        value, targets = networks.value.init(value_key), jax.tree.map(jnp.copy, critics)
        learned = {"policy": policy, "critic": critics, "value": value}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        return State(policy, critics, value, targets, opt_states, key, jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        # Losses that draw nothing make these keys dead code.
        value_key, critic_key, policy_key = jax.random.split(jax.random.fold_in(state.key, state.num_updates), 3)
        policy_opt, critics_opt, value_opt = state.opt_states

        value_grads, of_value = jax.grad(objective(losses.value), has_aux=True)(state.value, state, batch, value_key)
        critic_grads, of_critics = jax.grad(objective(losses.critic), has_aux=True)(
            state.critics, state, batch, critic_key
        )
        value, value_opt = optimizer_step(optimizers["value"], value_grads, state.value, value_opt)
        critics, critics_opt = optimizer_step(optimizers["critic"], critic_grads, state.critics, critics_opt)

        stepped = state._replace(critics=critics, value=value)
        grads, policy_output = jax.grad(objective(losses.policy), has_aux=True)(
            state.policy, stepped, batch, policy_key
        )
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, policy_opt)
        targets = optax.incremental_update(critics, state.target_critics, config.tau)

        metrics = {"value_loss": of_value.loss, "critic_loss": of_critics.loss, "policy_loss": policy_output.loss}
        metrics |= {**of_value.metrics, **of_critics.metrics, **policy_output.metrics}
        opt_states, num_updates = (policy_opt, critics_opt, value_opt), state.num_updates + 1
        state = State(policy, critics, value, targets, opt_states, state.key, num_updates)
        return state, UpdateOutput(metrics, of_critics.priorities)

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
    """Returns IQL as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config, scale_rewards=config.scale_rewards),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
