"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous control with deep RL", 1509.02971).

A deterministic policy climbs a critic that is learned off-policy; both have target networks.

Differences from the paper:
  * The exploration noise is independent from step to step, which Fujimoto et al. (2018) found as good as the
    paper's Ornstein-Uhlenbeck process; `noise_correlation` 0.85 and `exploration_noise` 0.38 are the latter.
  * Each actor begins with `num_random_steps` uniform actions.
  * Actions enter the critic at its first layer; no batch normalisation, no weight decay.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Larger batches, and targets that move five times as fast (as in Fujimoto et al. 2018).
  * Truncated episodes bootstrap.
  * Images are seen by one encoder, as in DrQ-v2: `common/drq.py`.
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
from agentkit.agents.common.drq import with_drq
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, OpenFraction, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of DDPG, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of the policy and of the critic.
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        max_grad_norm: clips the global norm of each of the two gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which both targets move at each update, in (0, 1].
        exploration_noise: standard deviation of the noise on an actor's actions, in units of half their range.
        noise_correlation: of the noise at one step with that at the next, in [0, 1).
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
    """

    batch_size: Count = 128
    min_replay_size: Count = 25_000
    hidden_sizes: Sizes = (400, 300)
    policy_learning_rate: Positive | Schedule = 1e-4
    critic_learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    exploration_noise: NotNegative = 0.1
    noise_correlation: OpenFraction = 0.0
    num_random_steps: CountFromZero = 25_000


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a deterministic policy and a critic, for an environment of continuous actions in [-1, 1]."""
    return nets.deterministic_networks(environment_spec, "DDPG", config.hidden_sizes, nets.action_value, torso)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Adds noise to the policy's actions (eq. 7), after uniform actions at first; in evaluation adds none."""
    if evaluation:
        return actors.deterministic_policy(networks.policy.apply)
    sigma, rho = config.exploration_noise, config.noise_correlation
    return actors.gaussian_noise_policy(
        networks.policy.apply, networks.action_shape, sigma, config.num_random_steps, rho
    )


class State(NamedTuple):
    """Holds the training state of DDPG.

    Attributes:
        policy: parameters.
        critic: parameters.
        target_policy: moving average of the policy's.
        target_critic: moving average of the critic's.
        opt_states: of policy and critic.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    policy: Params
    critic: Params
    target_policy: Params
    target_critic: Params
    opt_states: tuple[optax.OptState, optax.OptState]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critic and policy.

    Attributes:
        critic: ``(critic, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the critic in `state` as it has just become.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, q_at = networks.policy.apply, networks.critic.apply

    def critic_loss(critic: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        q_t = q_at(state.target_critic, o_t, policy_at(state.target_policy, o_t))
        target = jax.lax.stop_gradient(r_t + discount_t * q_t)  # [B], eq. 5
        q_tm1 = q_at(critic, o_tm1, a_tm1)
        loss, metrics = jnp.square(target - q_tm1), {"q": jnp.mean(q_tm1)}  # eq. 4
        return importance_weighted_loss(loss, metrics, batch, config, priorities=jnp.abs(target - q_tm1))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1 = batch.data.observation
        q = q_at(state.critic, o_tm1, policy_at(policy, o_tm1))
        return LossOutput(-jnp.mean(q), {})  # its gradient is minus eq. 6

    return Losses(critic_loss, policy_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critic, then one on the policy, and moves both targets (algorithm 1)."""
    of_policy, of_critic = (
        adam(rate, config.max_grad_norm, epsilon=config.adam_epsilon)
        for rate in (config.policy_learning_rate, config.critic_learning_rate)
    )
    optimizers = optimizers_of(optimizer, config, policy=of_policy, critic=of_critic)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critic = networks.policy.init(policy_key), networks.critic.init(critic_key)
        target_policy, target_critic = jax.tree.map(jnp.copy, (policy, critic))
        opt_states = optimizers["policy"].init(policy), optimizers["critic"].init(critic)
        num_updates = jnp.zeros((), jnp.int32)
        return State(policy, critic, target_policy, target_critic, opt_states, key, num_updates)

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        # Losses that draw nothing make these keys dead code.
        critic_key, policy_key = jax.random.split(jax.random.fold_in(state.key, state.num_updates))
        policy_opt, critic_opt = state.opt_states

        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critic, state, batch, critic_key)
        critic, critic_opt = optimizer_step(optimizers["critic"], grads, state.critic, critic_opt)
        state = state._replace(critic=critic)

        grads, policy_output = jax.grad(objective(losses.policy), has_aux=True)(state.policy, state, batch, policy_key)
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, policy_opt)
        target_policy = optax.incremental_update(policy, state.target_policy, config.tau)
        target_critic = optax.incremental_update(critic, state.target_critic, config.tau)
        metrics = {
            "critic_loss": output.loss,
            "policy_loss": policy_output.loss,
            **output.metrics,
            **policy_output.metrics,
        }
        opt_states, num_updates = (policy_opt, critic_opt), state.num_updates + 1
        state = State(policy, critic, target_policy, target_critic, opt_states, state.key, num_updates)
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
    """Returns DDPG as an agent, with any of its parts replaced; it sees images by `with_drq`."""
    check_config(config, Config)
    agent = Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
    return with_drq(agent)
