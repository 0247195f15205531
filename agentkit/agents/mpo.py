"""MPO: maximum a posteriori policy optimisation (Abdolmaleki et al. 2018, "Maximum a Posteriori ...", 1806.06920).

Actions are sampled from a lagged policy, weighted by what the critic says of them, and the policy is fitted to the
weighted samples without going far. How sharp the weights are (the E-step) and how far the policy goes (the M-step)
are bounded in nats, whatever the rewards' scale. Its mean and its deviation have bounds of their own (Abdolmaleki et
al. 2018, "Relative Entropy Regularized Policy Iteration", 1812.02256).

Deviations from the papers:
  * The critic learns from n-step returns without corrections; 1806.06920 uses Retrace.
  * The Gaussian is diagonal, and each of its dimensions has its own two bounds and multipliers.
  * Multipliers are learned as logarithms, by Adam.
  * A sample's distance from the bounds is a second objective (2005.07513, and DeepMind's Acme); `epsilon_penalty` None
    leaves it out. The critic sees actions clipped to the bounds.
  * Weights begin orthogonal, those of the policy's last layer small; ReLU layers of 256, no layer normalisation.
  * One update a step and a learning rate of 3e-4, for trainings of some 200,000 steps.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, clipped_samples
from agentkit.agents.common.ranges import Count, Positive, Range
from agentkit.agents.off_policy import OffPolicyConfig, agent_of_update, mean_loss
from agentkit.learning import PolicyCritic, Update, UpdateOutput, adam, optimizer_step, periodic
from agentkit.networks import ActorCriticNetworks
from agentkit.types import LossOutput, Nest, ReplaySample

LARGEST_LOG_DUAL = 18.0
"""A multiplier's logarithm stays within plus and minus this."""


@dataclasses.dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Settings of MPO, beside those of `OffPolicyConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of policy and critic.
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        dual_learning_rate: Adam's step size for the multipliers' logarithms.
        target_update_period: updates between copies to the lagged policy and critic.
        num_samples: actions that are sampled and judged in each state, at least 1.
        epsilon: bound on the KL of the weighted samples from the policy, > 0; smaller is more cautious.
        epsilon_mean: bound on the KL by which each dimension's mean goes between two copies, > 0.
        epsilon_std: the same for each dimension's standard deviation, > 0; smaller explores for longer.
        epsilon_penalty: as `epsilon`, for samples out of bounds, > 0; None for no such penalty.
        initial_std: standard deviation of actions at first, in units of half their range, > 0.
        min_std: least standard deviation, > 0.
        initial_temperature: eta at the start, of the same order as differences between Q-values, > 0.
        initial_alpha_mean: multiplier of the means' KL at the start, > 0.
        initial_alpha_std: multiplier of the deviations' KL at the start, > 0.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    n_step: int = 5
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    dual_learning_rate: float = 1e-2
    target_update_period: int = 100
    num_samples: Count = 20
    epsilon: Positive = 0.1
    epsilon_mean: Positive = 2.5e-3
    epsilon_std: Positive = 1e-5
    epsilon_penalty: Annotated[float | None, Range("> 0", lambda value: value > 0)] = 1e-3
    initial_std: Positive = 0.7
    min_std: Positive = 1e-3
    initial_temperature: Positive = 1.0
    initial_alpha_mean: Positive = 10.0
    initial_alpha_std: Positive = 100.0


class Learned(NamedTuple):
    """Something of each of the three that are learned: parameters, gradients, optimisers, optimiser states."""

    policy: Any
    critic: Any
    duals: Any


class TrainingState(NamedTuple):
    """What MPO learns.

    Attributes:
        params: of policy and critic, and the duals.
        targets: the lagged policy and critic.
        opt_states: of the three optimisers.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    params: Learned
    targets: PolicyCritic
    opt_states: Learned
    key: jax.Array
    num_updates: jax.Array


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> ActorCriticNetworks:
    """A Gaussian policy, whose samples may be out of [-1, 1], and a critic of actions that it clips to that."""
    softplus_of_initial = np.log(np.expm1(config.initial_std))

    def policy(observation: Nest, size: int) -> nets.DiagonalNormal:
        outputs = nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, 2 * size, output_scale=0.01)
        mean, raw_std = jnp.split(outputs, 2, axis=-1)
        std = jax.nn.softplus(raw_std + softplus_of_initial)
        return nets.DiagonalNormal(mean, jnp.log(jnp.maximum(std, config.min_std)))

    def critic(observation: Nest, action: jax.Array) -> jax.Array:
        return nets.action_value(observation, jnp.clip(action, -1.0, 1.0), config.hidden_sizes)

    return nets.actor_critic_networks(environment_spec, "MPO", policy, critic)


def make_policy(networks: ActorCriticNetworks, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy and clips to the bounds; in evaluation takes its mean."""
    del config
    return clipped_samples(networks.policy.apply, evaluation)


def make_loss(networks: ActorCriticNetworks, config: Config) -> Any:
    """``(params, targets, batch, key) -> LossOutput`` of all three: each reaches its own part of `params` only."""

    def sample_and_judge(targets: PolicyCritic, observation: Nest, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        policy = networks.policy.apply(targets.policy, observation)
        samples = jax.vmap(policy.sample)(jax.random.split(key, config.num_samples))  # [S, B, A]
        q = jax.vmap(networks.critic.apply, in_axes=(None, None, 0))(targets.critic, observation, samples)  # [S, B]
        return policy, samples, q

    def loss(params: Learned, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        key_tm1, key_t = jax.random.split(key)
        _, _, q_t = sample_and_judge(targets, o_t, key_t)
        q_tm1 = networks.critic.apply(params.critic, o_tm1, action)
        errors = reward + discount * jnp.mean(q_t, axis=0) - q_tm1  # [B]; no gradient reaches the lagged q_t.
        output = mean_loss(jnp.square(errors), {"q": jnp.mean(q_tm1)}, batch, config, priorities=jnp.abs(errors))

        target, samples, q = sample_and_judge(targets, o_tm1, key_tm1)
        policy = networks.policy.apply(params.policy, o_tm1)
        bounds = losses.MpoBounds(config.epsilon, config.epsilon_mean, config.epsilon_std, config.epsilon_penalty)
        policy_loss, measures = losses.mpo_loss(policy, target, samples, q, params.duals, bounds)
        metrics = {
            "critic_loss": output.loss,
            **output.metrics,
            **measures._asdict(),
            "std": jnp.mean(jnp.exp(policy.log_std)),
            "temperature": jnp.exp(params.duals.log_temperature),
            "alpha_mean": jnp.mean(jnp.exp(params.duals.log_alpha_mean)),
            "alpha_std": jnp.mean(jnp.exp(params.duals.log_alpha_std)),
        }
        return LossOutput(output.loss + policy_loss, metrics, output.priorities)

    return loss


def make_update(networks: ActorCriticNetworks, config: Config) -> Update:
    """A step each on critic, policy and duals; the lagged networks are copied now and then."""
    loss, follow = make_loss(networks, config), periodic(config.target_update_period)
    rates = (config.policy_learning_rate, config.critic_learning_rate, config.dual_learning_rate)
    optimizers = Learned(*map(adam, rates))

    def init(key: jax.Array) -> TrainingState:
        key, policy_key, critic_key = jax.random.split(key, 3)
        duals = initial_duals(config, networks.action_shape)
        params = Learned(networks.policy.init(policy_key), networks.critic.init(critic_key), duals)
        targets = jax.tree.map(jnp.copy, PolicyCritic(params.policy, params.critic))
        opt_states = Learned(*(optimizer.init(part) for optimizer, part in zip(optimizers, params, strict=True)))
        return TrainingState(params, targets, opt_states, key, jnp.zeros((), jnp.int32))

    def update(state: TrainingState, batch: ReplaySample) -> tuple[TrainingState, UpdateOutput]:
        key, loss_key = jax.random.split(state.key)

        def objective(params: Learned) -> tuple[jax.Array, LossOutput]:
            output = loss(params, state.targets, batch, loss_key)
            return output.loss, output

        grads, output = jax.grad(objective, has_aux=True)(state.params)
        stepped = [
            optimizer_step(optimizer, *parts)
            for optimizer, *parts in zip(optimizers, grads, state.params, state.opt_states, strict=True)
        ]
        params, opt_states = (Learned(*column) for column in zip(*stepped, strict=True))
        duals = jax.tree.map(lambda x: jnp.clip(x, -LARGEST_LOG_DUAL, LARGEST_LOG_DUAL), params.duals)
        params = params._replace(duals=duals)
        num_updates = state.num_updates + 1
        targets = follow(PolicyCritic(params.policy, params.critic), state.targets, num_updates)
        return TrainingState(params, targets, opt_states, key, num_updates), UpdateOutput(
            output.metrics, output.priorities
        )

    return Update(init, update, lambda state: {"policy": state.params.policy})


def initial_duals(config: Config, shape: tuple[int, ...]) -> losses.MpoDuals:
    """The logarithms of the multipliers as they begin."""
    eta = jnp.log(jnp.float32(config.initial_temperature))
    return losses.MpoDuals(
        log_temperature=eta,
        log_alpha_mean=jnp.full(shape, np.log(config.initial_alpha_mean), jnp.float32),
        log_alpha_std=jnp.full(shape, np.log(config.initial_alpha_std), jnp.float32),
        log_penalty_temperature=eta,
    )


make_agent = agent_of_update(Config, make_networks, make_policy, make_update)
