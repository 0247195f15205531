"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", 1812.05905).

Twin critics, a tanh-Gaussian policy and a temperature learned towards a target entropy.

Deviations from the paper:
  * The temperature's logarithm is the learned parameter (as in the authors' code).
  * Episodes begin with `num_random_steps` uniform actions, so that the first batches are varied.
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.agents.checks import check_positive
from agentkit.agents.off_policy import OffPolicyConfig, agent_of_update, mean_loss
from agentkit.learning import Update, UpdateOutput, adam, polyak
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Settings of SAC, beside those of `OffPolicyConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of policy and critics.
        learning_rate: Adam's step size, for policy, critics and temperature.
        tau: fraction by which the target critics move to the critics at each update, in (0, 1].
        target_entropy: entropy in nats that the temperature is tuned to; None for minus the number
            of action dimensions (paper, appendix D).
        initial_temperature: alpha at the start, > 0.
        learn_temperature: tune alpha (paper, eq. 18); False keeps `initial_temperature`.
        min_log_std: least log standard deviation of the policy before tanh.
        max_log_std: greatest one.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    tau: float = 0.005
    target_entropy: float | None = None
    initial_temperature: float = 1.0
    learn_temperature: bool = True
    min_log_std: float = -10.0
    max_log_std: float = 2.0
    num_random_steps: int = 5_000

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_positive(self, "initial_temperature")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init_policy: ``key -> params``.
        init_critic: ``key -> params`` of one critic.
        policy: ``(params, observation [B, ...]) -> TanhNormal`` of ``[B, A]``.
        critic: ``(params, observation [B, ...], action [B, A]) -> [B]``.
        action_shape: ``[A]`` as a tuple.
    """

    init_policy: Callable[[jax.Array], Any]
    init_critic: Callable[[jax.Array], Any]
    policy: Callable[[Any, Nest], nets.TanhNormal]
    critic: Callable[[Any, Nest, jax.Array], jax.Array]
    action_shape: tuple[int, ...]


class TrainingState(NamedTuple):
    """What SAC learns.

    Attributes:
        policy: policy parameters.
        critics: a pair of critic parameters.
        target_critics: their lagged copies.
        log_temperature: log alpha, float32 ``[]``.
        opt_states: optimiser states of policy, critics, temperature.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    policy: Any
    critics: tuple[Any, Any]
    target_critics: tuple[Any, Any]
    log_temperature: jax.Array
    opt_states: tuple[Any, Any, Any]
    key: jax.Array
    num_updates: jax.Array


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Policy and critic for an environment of continuous actions in (-1, 1)."""
    actions = environment_spec.actions
    size = specs.canonical_action_size(actions, "SAC")

    def policy(observation: Nest) -> nets.TanhNormal:
        outputs = nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, 2 * size, output_scale=0.01)
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return nets.TanhNormal(mean, jnp.clip(log_std, config.min_log_std, config.max_log_std))

    def critic(observation: Nest, action: jax.Array) -> jax.Array:
        features = jnp.concatenate([nets.torso(observation), action], axis=-1)
        return nets.orthogonal_mlp(features, config.hidden_sizes, 1)[:, 0]

    policy_network: hk.Transformed = hk.without_apply_rng(hk.transform(policy))
    critic_network: hk.Transformed = hk.without_apply_rng(hk.transform(critic))
    observation, action = jax.tree.map(
        lambda x: x[None], (specs.zeros(environment_spec.observations), specs.zeros(actions))
    )
    return Networks(
        init_policy=lambda key: policy_network.init(key, observation),
        init_critic=lambda key: critic_network.init(key, observation, action),
        policy=policy_network.apply,
        critic=critic_network.apply,
        action_shape=tuple(actions.shape),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy (uniform at first); in evaluation takes its mode. State: int32 steps ``[]``."""

    def act(params: Any, key: jax.Array, observation: Nest, num_steps: jax.Array) -> tuple[Nest, Nest, Nest]:
        distribution = networks.policy(params, jax.tree.map(lambda x: x[None], observation))
        if evaluation:
            return nets.mode(distribution)[0], num_steps, ()
        sample_key, uniform_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, networks.action_shape, minval=-1.0, maxval=1.0)
        sampled = nets.sample(distribution, sample_key)[0]
        return jnp.where(num_steps < config.num_random_steps, uniform, sampled), num_steps + 1, ()

    return Policy(act, init=lambda key: jnp.zeros((), jnp.int32))


def make_update(networks: Networks, config: Config) -> Update:
    """One step each on critics, policy and temperature (paper, algorithm 1)."""
    import optax  # Not at import time: actors load this file, and optimise nothing.

    optimizer = adam(config.learning_rate)
    follow = polyak(config.tau)
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def both(critics: tuple[Any, Any], observation: Nest, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tuple(networks.critic(params, observation, action) for params in critics)  # type: ignore[return-value]

    def critic_loss(critics: Any, target: jax.Array, batch: ReplaySample) -> tuple[jax.Array, LossOutput]:
        q_1, q_2 = both(critics, batch.data.observation, batch.data.action)
        per_item = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # eq. 5
        output = mean_loss(per_item, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))
        return output.loss, output

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, observation: Nest, key: jax.Array) -> Any:
        action, log_prob = nets.sample_and_log_prob(networks.policy(policy, observation), key)
        q = jnp.minimum(*both(critics, observation, action))
        return jnp.mean(temperature * log_prob - q), jnp.mean(log_prob)  # eq. 9

    def soft_target(state: TrainingState, transition: Any, key: jax.Array) -> jax.Array:
        action, log_prob = nets.sample_and_log_prob(networks.policy(state.policy, transition.next_observation), key)
        q = jnp.minimum(*both(state.target_critics, transition.next_observation, action))
        value = q - jnp.exp(state.log_temperature) * log_prob  # eq. 3
        return transition.reward + transition.discount * value  # [B]

    def init(key: jax.Array) -> TrainingState:
        key, policy_key, key_1, key_2 = jax.random.split(key, 4)
        policy = networks.init_policy(policy_key)
        critics = (networks.init_critic(key_1), networks.init_critic(key_2))
        log_temperature = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        opt_states = (optimizer.init(policy), optimizer.init(critics), optimizer.init(log_temperature))
        targets = jax.tree.map(jnp.copy, critics)
        return TrainingState(policy, critics, targets, log_temperature, opt_states, key, jnp.zeros((), jnp.int32))

    def update(state: TrainingState, batch: ReplaySample) -> tuple[TrainingState, UpdateOutput]:
        transition = batch.data
        key, target_key, policy_key = jax.random.split(state.key, 3)
        temperature = jnp.exp(state.log_temperature)
        policy_opt, critics_opt, temperature_opt = state.opt_states

        target = jax.lax.stop_gradient(soft_target(state, transition, target_key))
        grads, output = jax.grad(critic_loss, has_aux=True)(state.critics, target, batch)
        updates, critics_opt = optimizer.update(grads, critics_opt)
        critics = optax.apply_updates(state.critics, updates)

        (loss_pi, log_prob), grads = jax.value_and_grad(policy_loss, has_aux=True)(
            state.policy, state.critics, temperature, transition.observation, policy_key
        )
        updates, policy_opt = optimizer.update(grads, policy_opt)
        policy = optax.apply_updates(state.policy, updates)

        log_temperature = state.log_temperature
        if config.learn_temperature:  # eq. 18: the gradient of -log_alpha * (log_prob + target_entropy)
            updates, temperature_opt = optimizer.update(-(log_prob + target_entropy), temperature_opt)
            log_temperature = optax.apply_updates(log_temperature, updates)

        num_updates = state.num_updates + 1
        new_state = TrainingState(
            policy=policy,
            critics=critics,
            target_critics=follow(critics, state.target_critics, num_updates),
            log_temperature=log_temperature,
            opt_states=(policy_opt, critics_opt, temperature_opt),
            key=key,
            num_updates=num_updates,
        )
        metrics = {
            "critic_loss": output.loss,
            "policy_loss": loss_pi,
            **output.metrics,
            "entropy": -log_prob,
            "temperature": temperature,
        }
        return new_state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.policy})


Agent = agent_of_update(Config, make_networks, make_policy, make_update)
