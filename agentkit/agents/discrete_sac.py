"""Discrete SAC: SAC for one discrete action (Christodoulou 2019, "SAC for Discrete Action Settings", 1910.07207).

SAC whose critics give a value to every action, so that means over the policy's actions are sums and need no samples.

What is known to go wrong is the temperature. Its target is a share of the greatest entropy, log A, and the paper's
share, 0.98, is all but uniform: where few actions are good, the policy cannot both have it and act well, so alpha grows
until entropy outweighs the rewards. Too low a share lets alpha fall to 0, and exploration with it; no one share suits
all states. Zhou et al. (2022, 2209.10081) also find that the smaller of two critics underestimates here. Look at
`entropy` and `temperature`: an alpha that only grows asks for a lower `entropy_share`.

Deviations from the paper:
  * The share is 0.7, and not 0.98, for the reason above.
  * The temperature's gradient is that of its logarithm times the entropy's error, as in our SAC.
  * An actor's first `num_random_steps` actions are uniform.
  * Where an action mask rules actions out, the target entropy is still a share of log A.
  * Weights begin orthogonal, those of the policy's last layer small; images go through DQN's convolutions.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.ranges import Fraction, Positive
from agentkit.agents.off_policy import SoftConfig, agent_of_loss, mean_loss
from agentkit.learning import Bootstrap, PolicyCritic, SoftLosses, Update, adam_soft_actor_critic, soft_target
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(SoftConfig):
    """Settings of discrete SAC, beside those of `SoftConfig`.

    Attributes:
        entropy_share: of log A, the greatest entropy of A actions; the temperature is tuned to it, in [0, 1].
    """

    entropy_share: Fraction = 0.7
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    initial_temperature: Positive = 0.1
    num_random_steps: int = 500
    batch_size: int = 128
    replay_size: int = 100_000


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> Categorical`` of ``[B, A]``.
        critic: one critic, ``observation [B, ...] -> q [B, A]``.
        num_actions: A.
    """

    policy: nets.Network
    critic: nets.Network
    num_actions: int


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Policy and critic for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Discrete SAC")

    def policy(observation: Nest) -> nets.Categorical:
        features = nets.torso(observation)
        logits = nets.orthogonal_mlp(features, config.hidden_sizes, num_actions, output_scale=0.01)
        return nets.Categorical(nets.mask_illegal(logits, observation))

    def critic(observation: Nest) -> jax.Array:
        return nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, num_actions)

    observations = environment_spec.observations
    return Networks(nets.make_network(policy, observations), nets.make_network(critic, observations), num_actions)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy (uniform at first); in evaluation takes the likeliest action."""
    if evaluation:
        return actors.likeliest(networks.policy.apply, nets.Categorical.mode)

    def uniform(key: jax.Array, observation: Nest) -> jax.Array:
        return nets.Categorical(nets.mask_illegal(jnp.zeros((1, networks.num_actions)), observation)).sample(key)[0]

    return actors.uniform_then_samples(networks.policy.apply, nets.Categorical.sample, uniform, config.num_random_steps)


def make_losses(networks: Networks, config: Config) -> SoftLosses:
    """The losses of critics and policy on a batch of `Transition`s ``[B, ...]``; `critics` are a pair of parameters."""

    def both(critics: Any, observation: Nest) -> list[jax.Array]:
        return [networks.critic.apply(params, observation) for params in critics]  # [B, A] each

    def expected(actions: nets.Categorical, q: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(actions.logits) * q, axis=-1)  # [B]

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        next_actions = networks.policy.apply(bootstrap.policy, o_t)
        q_t = expected(next_actions, jnp.minimum(*both(bootstrap.critics, o_t)))
        target = soft_target(reward, discount, q_t, -next_actions.entropy(), bootstrap.temperature)  # eq. 10
        taken = jax.nn.one_hot(action, networks.num_actions)
        q_1, q_2 = (jnp.sum(q * taken, axis=-1) for q in both(critics, o_tm1))  # [B]
        per_item = 0.5 * (jnp.square(q_1 - target) + jnp.square(q_2 - target))  # eq. 4
        return mean_loss(per_item, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(q_1 - target))

    def policy_loss(policy: Any, critics: Any, temperature: jax.Array, batch: ReplaySample, key: jax.Array) -> Any:
        del key
        actions = networks.policy.apply(policy, batch.data.observation)
        q = expected(actions, jnp.minimum(*both(critics, batch.data.observation)))
        log_prob = -jnp.mean(actions.entropy())
        return temperature * log_prob - jnp.mean(q), log_prob  # eq. 12

    return SoftLosses(critic_loss, policy_loss)


def fit(losses: SoftLosses, networks: Networks, config: Config) -> Update:
    """One step each on critics, policy and temperature (paper, algorithm 1)."""
    init = PolicyCritic(networks.policy.init, lambda keys: tuple(map(networks.critic.init, keys)))
    target_entropy = config.entropy_share * float(np.log(networks.num_actions))
    return adam_soft_actor_critic(losses, init, 2, config, target_entropy)


make_agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
