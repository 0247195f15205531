"""TD3: twin delayed DDPG (Fujimoto et al. 2018, "Addressing Function Approximation Error", 1802.09477).

DDPG with three remedies for overestimated values: the smaller of two critics, target actions with clipped noise, and a
policy and targets that move less often than the critics.

Differences from the paper:
  * Network sizes, batch size and learning rate are those of the authors' later code (256 x 256, 256, 3e-4);
    the paper has 400 x 300, 100 and 1e-3.
  * 25,000 uniform actions at first, as in the authors' later code; the paper takes 10,000 where episodes do not
    terminate early, else 1,000.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Images are seen by one encoder, as in DrQ-v2: `common/drq.py`.
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
from agentkit.agents.common.drq import with_drq
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of TD3, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        learning_rate: Adam's step size, for both losses.
        max_grad_norm: clips the global norm of each of the two gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the targets move when the policy does, in (0, 1].
        policy_delay: d, critic steps for each step of policy and targets.
        target_policy_noise: sigma, standard deviation of the noise on target actions, in units of half their range.
        target_noise_clip: c, the largest such noise.
        exploration_noise: standard deviation of the noise on an actor's actions, in units of half their range.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
    """

    min_replay_size: Count = 25_000
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    policy_delay: Count = 2
    target_policy_noise: NotNegative = 0.2
    target_noise_clip: NotNegative = 0.5
    exploration_noise: NotNegative = 0.1
    num_random_steps: CountFromZero = 25_000


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a deterministic policy and twin critics, for an environment of continuous actions in [-1, 1]."""
    return nets.deterministic_networks(environment_spec, "TD3", config.hidden_sizes, nets.twin_action_values, torso)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Adds noise to the policy's actions, after uniform actions at first; in evaluation adds none."""
    if evaluation:
        return actors.deterministic_policy(networks.policy.apply)
    sigma, num_random_steps = config.exploration_noise, config.num_random_steps
    return actors.gaussian_noise_policy(networks.policy.apply, networks.action_shape, sigma, num_random_steps)


class State(NamedTuple):
    """Holds the training state of TD3.

    Attributes:
        policy: parameters.
        critics: parameters of both.
        target_policy: moving average of the policy's.
        target_critics: moving average of the critics'.
        opt_states: of policy and critics.
        policy_loss: of the newest policy step, ``[]``, to log between two such steps.
        key: PRNG key ``uint32[2]``.
        num_updates: critic steps taken, int32 ``[]``.
    """

    policy: Params
    critics: Params
    target_policy: Params
    target_critics: Params
    opt_states: tuple[optax.OptState, optax.OptState]
    policy_loss: jax.Array
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics and policy.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the critics in `state` as they have just become.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, twins_at = networks.policy.apply, networks.critic.apply
    smoothing = config.target_policy_noise, config.target_noise_clip

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        a_t = losses.smoothed_action(policy_at(state.target_policy, o_t), key, *smoothing)  # eq. 14
        target = r_t + discount_t * jnp.minimum(*twins_at(state.target_critics, o_t, a_t))  # [B], eq. 10
        q_1, q_2 = twins_at(critics, o_tm1, a_tm1)
        loss = jnp.square(target - q_1) + jnp.square(target - q_2)
        metrics = {"q": jnp.mean(q_1), "critics_gap": jnp.mean(jnp.abs(q_1 - q_2))}
        return importance_weighted_loss(loss, metrics, batch, config, priorities=jnp.abs(target - q_1))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1 = batch.data.observation
        q_1, _ = twins_at(state.critics, o_tm1, policy_at(policy, o_tm1))
        return LossOutput(-jnp.mean(q_1), {})

    return Losses(critic_loss, policy_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, and at every `policy_delay`-th update on policy and targets (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critics = networks.policy.init(policy_key), networks.critic.init(critic_key)
        target_policy, target_critics = jax.tree.map(jnp.copy, (policy, critics))
        opt_states = optimizers["policy"].init(policy), optimizers["critic"].init(critics)
        num_updates = jnp.zeros((), jnp.int32)
        return State(policy, critics, target_policy, target_critics, opt_states, jnp.zeros(()), key, num_updates)

    def policy_step(
        state: State, batch: ReplaySample[Transition], key: jax.Array
    ) -> tuple[Params, Params, Params, optax.OptState, jax.Array]:
        grads, output = jax.grad(objective(losses.policy), has_aux=True)(state.policy, state, batch, key)
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, state.opt_states[0])
        target_policy = optax.incremental_update(policy, state.target_policy, config.tau)
        target_critics = optax.incremental_update(state.critics, state.target_critics, config.tau)
        return policy, target_policy, target_critics, policy_opt, output.loss

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        # No key of the critics is a key of the policy: fold_in takes negative numbers for other ones.
        critic_key = jax.random.fold_in(state.key, state.num_updates)
        policy_key = jax.random.fold_in(state.key, -state.num_updates - 1)

        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        policy_opt, critics_opt = state.opt_states
        critics, critics_opt = optimizer_step(optimizers["critic"], grads, state.critics, critics_opt)

        # A conditional copies all that it returns, so it returns no more than what may change.
        num_updates, stepped = state.num_updates + 1, state._replace(critics=critics)
        unchanged = (state.policy, state.target_policy, state.target_critics, policy_opt, state.policy_loss)
        policy, target_policy, target_critics, policy_opt, policy_loss = jax.lax.cond(
            num_updates % config.policy_delay == 0,
            lambda: policy_step(stepped, batch, policy_key),
            lambda: unchanged,
        )
        metrics = {"critic_loss": output.loss, "policy_loss": policy_loss, **output.metrics}
        opt_states = policy_opt, critics_opt
        state = State(policy, critics, target_policy, target_critics, opt_states, policy_loss, state.key, num_updates)
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
    """Returns TD3 as an agent, with any of its parts replaced; it sees images by `with_drq`."""
    check_config(config, Config)
    agent = Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
    return with_drq(agent)
