"""What agents share whose policy imitates the data's better actions (IQL, CRR): settings, networks, acting, fitting.

The policy is fitted to actions of the data, each weighted by how much better it is than the policy's own: what was
never done is never asked for. An algorithm is how advantages are found and what weights are made of them.
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
from agentkit.actors import Policy, feed_forward
from agentkit.agents.checks import check_positive
from agentkit.agents.off_policy import OffPolicyConfig
from agentkit.learning import ActorCritic, ActorCriticLosses, Update, adam, deterministic_actor_critic, polyak
from agentkit.types import Nest

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
"""Of the policy; the bounds of IQL's authors."""


@dataclasses.dataclass(frozen=True)
class RegressionConfig(OffPolicyConfig):
    """Settings that each of these agents has.

    Attributes:
        hidden_sizes: units of each hidden layer, in the policy and in each critic.
        learning_rate: Adam's step size, for policy and critics.
        tau: fraction by which the targets move at each update, in (0, 1].
        temperature: what an advantage is divided by before the exponential that weighs actions; the less, the greedier.
        max_weight: the largest such weight, > 0.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    tau: float = 0.005
    temperature: float = 1.0
    max_weight: float = 100.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_positive(self, "temperature", "max_weight")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> DiagonalNormal`` of ``[B, A]``, its means in [-1, 1].
        critics: ``observation [B, ...], action [B, A] -> (q [B], q [B])``, two critics that share nothing.
        value: ``observation [B, ...] -> [B]``.
    """

    policy: nets.Network
    critics: nets.Network
    value: nets.Network


def make_networks(environment_spec: specs.EnvironmentSpec, config: RegressionConfig, agent: str) -> Networks:
    """For an environment of continuous actions in [-1, 1]; `agent` is who needs them."""
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(actions, agent)

    def policy(observation: Nest) -> nets.DiagonalNormal:
        mean = nets.tanh_action(observation, size, config.hidden_sizes)  # [B, A]
        log_std = hk.get_parameter("log_std", (size,), init=jnp.zeros)
        log_std = jnp.clip(log_std, MIN_LOG_STD, MAX_LOG_STD)
        return nets.DiagonalNormal(mean, jnp.broadcast_to(log_std, mean.shape))

    def critics(observation: Nest, action: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(nets.critic(observation, action, config.hidden_sizes)[:, 0] for _ in range(2))

    def value(observation: Nest) -> jax.Array:
        return nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, 1)[:, 0]

    return Networks(
        nets.network(policy, observations),
        nets.network(critics, observations, actions),
        nets.network(value, observations),
    )


def make_policy(networks: Networks, config: RegressionConfig, evaluation: bool = False) -> Policy:
    """A sample of the policy, clipped to [-1, 1]; in evaluation its mean."""
    del config

    def act(params: Any, key: jax.Array, observation: Nest) -> jax.Array:
        distribution = networks.policy.apply(params, jax.tree.map(lambda x: x[None], observation))
        return distribution.mode()[0] if evaluation else clipped_sample(distribution, key)[0]

    return feed_forward(act)


def clipped_sample(distribution: nets.DiagonalNormal, key: jax.Array) -> jax.Array:
    """Actions ``[B, A]`` as the environment takes them."""
    return jnp.clip(distribution.sample(key), -1.0, 1.0)


def fit_regression(
    losses: ActorCriticLosses, init_critic: Callable[[jax.Array], Any], networks: Networks, config: RegressionConfig
) -> Update:
    """Adam on all that judges and on the policy, at each update; see `learning.deterministic_actor_critic`."""
    return deterministic_actor_critic(
        losses,
        ActorCritic(networks.policy.init, init_critic),
        ActorCritic(adam(config.learning_rate), adam(config.learning_rate)),
        polyak(config.tau),
    )
