"""Discrete SAC: SAC for one discrete action (Christodoulou 2019, "SAC for Discrete Action Settings", 1910.07207).

The critics give a value to every action, so means over the policy's actions are sums and need no samples.

The temperature is known to go wrong. The target entropy is a fraction of the largest, log A, and the paper's fraction,
0.98, is nearly uniform: where few actions are good, the policy cannot both reach it and act well, so alpha grows until
entropy outweighs the rewards. With too low a fraction alpha falls to 0, and exploration with it; no single fraction
suits all states. Zhou et al. (2022, 2209.10081) also find that the smaller of two critics underestimates here. Watch
`entropy` and `temperature`: an alpha that only grows asks for a lower `target_entropy_ratio`.

Differences from the paper:
  * The fraction is 0.7 instead of 0.98, for the reason above.
  * The temperature's gradient is that of its logarithm times the entropy's error, as in our SAC.
  * All three gradients are taken at the parameters from before the update.
  * Each actor begins with `num_random_steps` uniform actions.
  * Where an action mask rules actions out, the target entropy is still a fraction of log A.
  * Orthogonal initial weights, small in the policy's last layer; images go through DQN's convolutions.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Fraction, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition

Critics = tuple[Params, Params]


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of discrete SAC, in addition to those of `ReplayConfig`.

    Attributes:
        target_entropy_ratio: target entropy over the largest, log A, in [0, 1].
        hidden_sizes: units of each hidden layer of the policy and of each critic (after the convolutions, for images).
        learning_rate: Adam's step size, for all three losses.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the target critics move at each update, in (0, 1].
        initial_temperature: alpha at the start, > 0.
        learn_temperature: whether to tune alpha to the target entropy.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
    """

    batch_size: Count = 128
    replay_size: Count = 100_000
    target_entropy_ratio: Fraction = 0.7
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    initial_temperature: Positive = 0.1
    learn_temperature: bool = True
    num_random_steps: CountFromZero = 500


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> Categorical`` of ``[B, A]``.
        critic: one critic, ``observation [B, ...] -> q [B, A]``.
        num_actions: A.
    """

    policy: nets.Network
    critic: nets.Network
    num_actions: int


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a policy, and one critic that is applied to two sets of parameters."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Discrete SAC")

    def policy(observation: Nest) -> nets.Categorical:
        features = torso(observation)
        logits = nets.orthogonal_mlp(features, config.hidden_sizes, num_actions, output_scale=0.01)
        return nets.Categorical(nets.mask_illegal(logits, observation))

    def critic(observation: Nest) -> jax.Array:
        return nets.orthogonal_mlp(torso(observation), config.hidden_sizes, num_actions)

    observations = environment_spec.observations
    return Networks(nets.make_network(policy, observations), nets.make_network(critic, observations), num_actions)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.Categorical.mode)

    def uniform(key: jax.Array, observation: Nest) -> jax.Array:
        return nets.Categorical(nets.mask_illegal(jnp.zeros((1, networks.num_actions)), observation)).sample(key)[0]

    return actors.sampling_policy(networks.policy.apply, nets.Categorical.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of discrete SAC.

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
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Critics, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds equations 4 and 12, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, q_at = networks.policy.apply, networks.critic.apply
    target_entropy = config.target_entropy_ratio * float(np.log(networks.num_actions))

    def expected(actions: nets.Categorical, q: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(actions.logits) * q, axis=-1)  # [B]

    def critic_loss(critics: Critics, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        actions_t, q_t = policy_at(state.policy, o_t), jnp.minimum(*(q_at(c, o_t) for c in state.target_critics))
        v_t = expected(actions_t, q_t) + jnp.exp(state.log_alpha) * actions_t.entropy()  # eq. 10
        target = jax.lax.stop_gradient(r_t + discount_t * v_t)
        taken = jax.nn.one_hot(a_tm1, networks.num_actions)
        q_1, q_2 = (jnp.sum(q_at(critic, o_tm1) * taken, axis=-1) for critic in critics)  # [B]
        loss = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # eq. 4
        return importance_weighted_loss(loss, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1 = batch.data.observation
        actions, q = policy_at(policy, o_tm1), jnp.minimum(*(q_at(critic, o_tm1) for critic in state.critics))
        entropy = jnp.mean(actions.entropy())
        loss = -jnp.exp(state.log_alpha) * entropy - jnp.mean(expected(actions, q))  # eq. 12
        return LossOutput(loss, {"entropy": entropy})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # cf. eq. 11, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a gradient step each on critics, policy and temperature (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        key, policy_key, *critic_keys = jax.random.split(key, 4)
        policy, critics = networks.policy.init(policy_key), tuple(map(networks.critic.init, critic_keys))
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": critics, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        return State(policy, critics, jax.tree.map(jnp.copy, critics), log_alpha, opt_states, key)

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
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
            alpha_grad, _ = jax.grad(objective(losses.temperature), has_aux=True)(
                log_alpha, state, batch, policy_output.metrics["entropy"]
            )
            log_alpha, alpha_opt = optimizer_step(optimizers["temperature"], alpha_grad, log_alpha, alpha_opt)
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
    """Returns discrete SAC as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
