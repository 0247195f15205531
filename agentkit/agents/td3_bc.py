"""TD3+BC: TD3 with a cloning term (Fujimoto & Gu 2021, "A Minimalist Approach to Offline RL", 2106.06860).

TD3 whose policy is also drawn to the actions of the data, so that it does not climb the critic where there are no data.
The critic's part is scaled by the mean absolute value, so that one weight serves rewards of any size.

Differences from the paper:
  * Observations are standardised with the mean and deviation of all that was drawn so far, not of the whole data: after
    some hundred batches the two are alike, and it serves online, too. They are clipped to 10 deviations.
  * The distance from the data's action is a mean over the action's dimensions, as in the authors' code, to which
    alpha = 2.5 belongs; the paper writes a square of vectors.
  * Orthogonal initial weights; those of the policy's last layer are small.
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
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of TD3+BC, in addition to those of `ReplayConfig`.

    Attributes:
        value_weight: alpha, weight of the critic's value beside the distance from the data's actions; 0 only clones.
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
        normalize_observations: whether to normalise vectors of floats by their mean and deviation in the data.
    """

    value_weight: NotNegative = 2.5
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    policy_delay: Count = 2
    target_policy_noise: NotNegative = 0.2
    target_noise_clip: NotNegative = 0.5
    exploration_noise: NotNegative = 0.1
    num_random_steps: CountFromZero = 1_000
    normalize_observations: bool = True


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1].
        critic: ``observation [B, ...], action [B, A] -> (q [B], q [B])``, two critics.
        action_shape: ``(A,)``.
        observation_spec: nest of the observations' specs.
    """

    policy: nets.Network
    critic: nets.Network
    action_shape: tuple[int, ...]
    observation_spec: Nest


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a deterministic policy and twin critics, for an environment of continuous actions in [-1, 1]."""
    made = nets.deterministic_networks(environment_spec, "TD3+BC", config.hidden_sizes, nets.twin_action_values, torso)
    return Networks(*made, environment_spec.observations)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Adds noise to the policy's actions, after uniform actions at first; in evaluation adds none.

    It sees observations as the learner does, normalised by the statistics that are published with its parameters.
    """
    policy_at, shape = networks.policy.apply, networks.action_shape
    if evaluation:
        return actors.with_normalized_observations(actors.deterministic_policy(policy_at))
    noisy = actors.gaussian_noise_policy(policy_at, shape, config.exploration_noise, config.num_random_steps)
    return actors.with_normalized_observations(noisy)


class State(NamedTuple):
    """Holds the training state of TD3+BC.

    Attributes:
        policy: parameters.
        critics: parameters of both.
        target_policy: moving average of the policy's.
        target_critics: moving average of the critics'.
        opt_states: of policy and critics.
        policy_metrics: of the newest policy step, to log between two such steps.
        key: PRNG key ``uint32[2]``.
        num_updates: critic steps taken, int32 ``[]``.
        statistics: of the observations drawn so far; ``()`` where they are not normalised.
    """

    policy: Params
    critics: Params
    target_policy: Params
    target_critics: Params
    opt_states: tuple[optax.OptState, optax.OptState]
    policy_metrics: dict[str, jax.Array]
    key: jax.Array
    num_updates: jax.Array
    statistics: nets.NestStatistics


class Losses(NamedTuple):
    """Holds the losses of critics and policy, on batches whose observations are normalised.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the critics in `state` as they have just become, and
            with a metric "cloning_loss".
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds TD3's critic loss and equation 3, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, twins_at = networks.policy.apply, networks.critic.apply
    smoothing = config.target_policy_noise, config.target_noise_clip

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        a_t = losses.smoothed_action(policy_at(state.target_policy, o_t), key, *smoothing)  # TD3, eq. 14
        target = r_t + discount_t * jnp.minimum(*twins_at(state.target_critics, o_t, a_t))  # [B], TD3, eq. 10
        q_1, q_2 = twins_at(critics, o_tm1, a_tm1)
        loss = jnp.square(target - q_1) + jnp.square(target - q_2)
        metrics = {"q": jnp.mean(q_1), "critics_gap": jnp.mean(jnp.abs(q_1 - q_2))}
        return importance_weighted_loss(loss, metrics, batch, config, priorities=jnp.abs(target - q_1))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1 = batch.data.observation, batch.data.action
        action = policy_at(policy, o_tm1)
        q_1, _ = twins_at(state.critics, o_tm1, action)
        cloning_loss = jnp.mean(jnp.square(action - a_tm1), axis=-1)  # [B]
        mean_size = jax.lax.stop_gradient(jnp.mean(jnp.abs(q_1)))
        scale = config.value_weight / jnp.maximum(mean_size, 1e-8)  # lambda, eq. 5
        loss = jnp.mean(cloning_loss - scale * q_1)  # eq. 3
        return LossOutput(loss, {"cloning_loss": jnp.mean(cloning_loss)})

    return Losses(critic_loss, policy_loss)


def take_in(
    statistics: nets.NestStatistics, batch: ReplaySample[Transition]
) -> tuple[nets.NestStatistics, ReplaySample[Transition]]:
    """Takes a batch into the observations' statistics, if there are any, and normalises the batch by them."""
    if not statistics:
        return statistics, batch
    data = batch.data
    statistics = nets.update_nest_statistics(statistics, data.observation)
    seen = actors.PolicyVariables((), statistics).normalized
    data = data._replace(observation=seen(data.observation), next_observation=seen(data.next_observation))
    return statistics, batch._replace(data=data)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, and at every `policy_delay`-th update on policy and targets (TD3, algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critics = networks.policy.init(policy_key), networks.critic.init(critic_key)
        target_policy, target_critics = jax.tree.map(jnp.copy, (policy, critics))
        opt_states = optimizers["policy"].init(policy), optimizers["critic"].init(critics)
        metrics = {"policy_loss": jnp.zeros(()), "cloning_loss": jnp.zeros(())}
        num_updates = jnp.zeros((), jnp.int32)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        return State(policy, critics, target_policy, target_critics, opt_states, metrics, key, num_updates, statistics)

    def policy_step(
        state: State, batch: ReplaySample[Transition], key: jax.Array
    ) -> tuple[Params, Params, Params, optax.OptState, dict[str, jax.Array]]:
        grads, output = jax.grad(objective(losses.policy, metrics=["cloning_loss"]), has_aux=True)(
            state.policy, state, batch, key
        )
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, state.opt_states[0])
        target_policy = optax.incremental_update(policy, state.target_policy, config.tau)
        target_critics = optax.incremental_update(state.critics, state.target_critics, config.tau)
        metrics = {"policy_loss": output.loss, "cloning_loss": output.metrics["cloning_loss"]}
        return policy, target_policy, target_critics, policy_opt, metrics

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        statistics, batch = take_in(state.statistics, batch)
        # No key of the critics is a key of the policy: fold_in takes negative numbers for other ones.
        critic_key = jax.random.fold_in(state.key, state.num_updates)
        policy_key = jax.random.fold_in(state.key, -state.num_updates - 1)

        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        policy_opt, critics_opt = state.opt_states
        critics, critics_opt = optimizer_step(optimizers["critic"], grads, state.critics, critics_opt)

        # A conditional copies all that it returns, so it returns no more than what may change.
        num_updates, stepped = state.num_updates + 1, state._replace(critics=critics)
        unchanged = (state.policy, state.target_policy, state.target_critics, policy_opt, state.policy_metrics)
        policy, target_policy, target_critics, policy_opt, policy_metrics = jax.lax.cond(
            num_updates % config.policy_delay == 0,
            lambda: policy_step(stepped, batch, policy_key),
            lambda: unchanged,
        )
        metrics = {"critic_loss": output.loss, **policy_metrics, **output.metrics}
        opt_states = policy_opt, critics_opt
        learned = policy, critics, target_policy, target_critics, opt_states
        state = State(*learned, policy_metrics, state.key, num_updates, statistics)
        return state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": actors.PolicyVariables(state.policy, state.statistics)})


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
    """Returns TD3+BC as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
