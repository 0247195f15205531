"""MPO: maximum a posteriori policy optimisation (Abdolmaleki et al. 2018, "Maximum a Posteriori ...", 1806.06920).

Actions are sampled from a target policy and weighted by the critic's values, and the policy is fitted to the weighted
samples in small steps. The sharpness of the weights (the E-step) and the length of a step (the M-step) are bounded in
nats, whatever the rewards' scale. The policy's mean and standard deviation have bounds of their own (Abdolmaleki et al.
2018, "Relative Entropy Regularized Policy Iteration", 1812.02256).

Differences from the papers:
  * The critic learns from n-step returns without corrections; 1806.06920 uses Retrace.
  * The Gaussian is diagonal, and each of its dimensions has its own two bounds and multipliers.
  * Multipliers are learned as logarithms, by Adam.
  * A sample's distance from the bounds is a second objective (2005.07513, and DeepMind's Acme); `epsilon_penalty` None
    leaves it out. The critic sees actions clipped to the bounds.
  * Orthogonal initial weights, small in the policy's last layer; ReLU layers of 256, no layer normalisation.
  * One update a step and a learning rate of 3e-4, for trainings of some 200,000 steps.
  * Truncated episodes bootstrap.
  * Images are seen by one encoder, as in DrQ-v2: `common/drq.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentkit import actors, losses, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.drq import with_drq
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Positive, Sizes, check_order
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition

MAX_LOG_DUAL = 18.0
"""Bounds the logarithm of each multiplier, from above and (negated) from below."""


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of MPO, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of the policy and of the critic.
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        dual_learning_rate: Adam's step size for the logarithms of the multipliers.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target policy and critic.
        num_samples: actions that are sampled and evaluated in each state.
        epsilon: bound on the KL of the weighted samples from the policy, > 0; smaller is more cautious.
        epsilon_mean: bound on the KL by which each dimension's mean moves between two copies, > 0.
        epsilon_std: bound on the same of each dimension's standard deviation, > 0; smaller explores for longer.
        epsilon_penalty: as `epsilon`, for samples out of bounds, > 0; None for no such penalty.
        initial_std: standard deviation of actions at first, in units of half their range, > `min_std`.
        min_std: lower bound of the standard deviation, > 0.
        initial_temperature: eta at the start, and that of the penalty; of the same order as differences between
            Q-values, > 0.
        initial_alpha_mean: multiplier of the means' KL at the start, > 0.
        initial_alpha_std: multiplier of the standard deviations' KL at the start, > 0.
    """

    n_step: Count = 5
    hidden_sizes: Sizes = (256, 256)
    policy_learning_rate: Positive | Schedule = 3e-4
    critic_learning_rate: Positive | Schedule = 3e-4
    dual_learning_rate: Positive | Schedule = 1e-2
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 100
    num_samples: Count = 20
    epsilon: Positive = 0.1
    epsilon_mean: Positive = 2.5e-3
    epsilon_std: Positive = 1e-5
    epsilon_penalty: Positive | None = 1e-3
    initial_std: Positive = 0.7
    min_std: Positive = 1e-3
    initial_temperature: Positive = 1.0
    initial_alpha_mean: Positive = 10.0
    initial_alpha_std: Positive = 100.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an initial deviation below the smallest."""
        super().__post_init__()
        check_order(self, "min_std", "initial_std")


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a Gaussian policy, whose samples may be out of [-1, 1], and a critic that clips actions to that."""
    softplus_of_initial = np.log(np.expm1(config.initial_std))

    def policy(observation: Nest, size: int) -> nets.DiagonalNormal:
        outputs = nets.orthogonal_mlp(torso(observation), config.hidden_sizes, 2 * size, output_scale=0.01)
        mean, raw_std = jnp.split(outputs, 2, axis=-1)
        std = jax.nn.softplus(raw_std + softplus_of_initial)
        return nets.DiagonalNormal(mean, jnp.log(jnp.maximum(std, config.min_std)))

    def critic(observation: Nest, action: jax.Array) -> jax.Array:
        return nets.action_value(observation, jnp.clip(action, -1.0, 1.0), config.hidden_sizes, torso)

    return nets.actor_critic_networks(environment_spec, "MPO", policy, critic)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy and clips to [-1, 1]; in evaluation takes its mean."""
    del config
    return actors.clipped_gaussian_policy(networks.policy.apply, evaluation)


class MPOParams(NamedTuple):
    """Holds one item for each of the three learned parts: parameters, gradients, optimisers, optimiser states.

    Attributes:
        policy: the policy's.
        critic: the critic's.
        duals: the multipliers'.
    """

    policy: Params
    critic: Params
    duals: Params


class State(NamedTuple):
    """Holds the training state of MPO.

    Attributes:
        params: of policy and critic, and the `losses.MPODuals`.
        target_policy: an older copy of the policy's parameters.
        target_critic: an older copy of the critic's parameters.
        opt_states: of the three optimisers.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    params: MPOParams
    target_policy: Params
    target_critic: Params
    opt_states: MPOParams
    key: jax.Array
    num_updates: jax.Array


PolicyAndDuals = tuple[Params, losses.MPODuals]
"""Parameters of the policy, and the multipliers: what the Lagrangian is a function of."""


class Losses(NamedTuple):
    """Holds the losses of critic and policy; the latter is the duals', too.

    Attributes:
        critic: ``(critic, state, batch, key) -> LossOutput``.
        policy: ``((policy, duals), state, batch, key) -> LossOutput``, the Lagrangian.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[PolicyAndDuals, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, q_at = networks.policy.apply, networks.critic.apply
    constraints = losses.MPOConstraints(config.epsilon, config.epsilon_mean, config.epsilon_std, config.epsilon_penalty)

    def sample_and_evaluate(
        state: State, observation: Nest, key: jax.Array
    ) -> tuple[nets.DiagonalNormal, jax.Array, jax.Array]:
        """Returns the target policy's distribution, samples of it ``[S, B, A]`` and their values ``[S, B]``."""
        policy = policy_at(state.target_policy, observation)
        samples = jax.vmap(policy.sample)(jax.random.split(key, config.num_samples))
        return policy, samples, jax.vmap(q_at, in_axes=(None, None, 0))(state.target_critic, observation, samples)

    def critic_loss(critic: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        _, _, q_t = sample_and_evaluate(state, o_t, key)
        q_tm1 = q_at(critic, o_tm1, a_tm1)
        errors = r_t + discount_t * jnp.mean(q_t, axis=0) - q_tm1  # [B]
        metrics = {"q": jnp.mean(q_tm1)}
        return importance_weighted_loss(jnp.square(errors), metrics, batch, config, priorities=jnp.abs(errors))

    def policy_loss(
        params: PolicyAndDuals, state: State, batch: ReplaySample[Transition], key: jax.Array
    ) -> LossOutput:
        o_tm1, duals = batch.data.observation, params[1]
        target, samples, q = sample_and_evaluate(state, o_tm1, key)
        policy = policy_at(params[0], o_tm1)
        loss, stats = losses.mpo_loss(policy, target, samples, q, duals, constraints)  # E-step, M-step
        metrics = {
            **stats._asdict(),
            "std": jnp.mean(jnp.exp(policy.log_std)),
            "temperature": jnp.exp(duals.log_temperature),
            "alpha_mean": jnp.mean(jnp.exp(duals.log_alpha_mean)),
            "alpha_std": jnp.mean(jnp.exp(duals.log_alpha_std)),
        }
        return LossOutput(loss, metrics)

    return Losses(critic_loss, policy_loss)


def initial_duals(config: Config, shape: tuple[int, ...]) -> losses.MPODuals:
    """Returns the logarithms of the multipliers at the start."""
    eta = jnp.log(jnp.float32(config.initial_temperature))
    return losses.MPODuals(
        log_temperature=eta,
        log_alpha_mean=jnp.full(shape, np.log(config.initial_alpha_mean), jnp.float32),
        log_alpha_std=jnp.full(shape, np.log(config.initial_alpha_std), jnp.float32),
        log_penalty_temperature=eta,
    )


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step each on critic, policy and duals, and copies the targets now and then."""
    rates = (config.policy_learning_rate, config.critic_learning_rate, config.dual_learning_rate)
    clip, epsilon = config.max_grad_norm, config.adam_epsilon
    of_policy, of_critic, of_duals = (adam(rate, clip, epsilon=epsilon) for rate in rates)
    chosen = optimizers_of(optimizer, config, policy=of_policy, critic=of_critic, duals=of_duals)
    optimizers = MPOParams(**chosen)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critic = networks.policy.init(policy_key), networks.critic.init(critic_key)
        params = MPOParams(policy, critic, initial_duals(config, networks.action_shape))
        target_policy, target_critic = jax.tree.map(jnp.copy, (policy, critic))
        opt_states = MPOParams(*(optimizer.init(part) for optimizer, part in zip(optimizers, params, strict=True)))
        return State(params, target_policy, target_critic, opt_states, key, jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, loss_key = jax.random.split(state.key)
        policy_key, critic_key = jax.random.split(loss_key)
        policy_and_duals = state.params.policy, state.params.duals
        critic_grads, critic = jax.grad(objective(losses.critic), has_aux=True)(
            state.params.critic, state, batch, critic_key
        )
        (policy_grads, duals_grads), policy = jax.grad(objective(losses.policy), has_aux=True)(
            policy_and_duals, state, batch, policy_key
        )
        grads = MPOParams(policy_grads, critic_grads, duals_grads)
        steps = map(optimizer_step, optimizers, grads, state.params, state.opt_states)
        params, opt_states = (MPOParams(*column) for column in zip(*steps, strict=True))
        duals = jax.tree.map(lambda x: jnp.clip(x, -MAX_LOG_DUAL, MAX_LOG_DUAL), params.duals)
        params = params._replace(duals=duals)

        num_updates, period = state.num_updates + 1, config.target_update_period
        target_policy = optax.periodic_update(params.policy, state.target_policy, num_updates, period)
        target_critic = optax.periodic_update(params.critic, state.target_critic, num_updates, period)
        state = State(params, target_policy, target_critic, opt_states, key, num_updates)
        metrics = {"critic_loss": critic.loss, **critic.metrics, **policy.metrics}
        return state, UpdateOutput(metrics, critic.priorities)

    return Update(init, update, lambda state: {"policy": state.params.policy})


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
    """Returns MPO as an agent, with any of its parts replaced; it sees images by `with_drq`."""
    check_config(config, Config)
    agent = Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
    return with_drq(agent)
