"""Policies and critics for continuous actions in [-1, 1]: what the actor-critic agents' networks are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.networks.distributions import DiagonalNormal
from agentkit.networks.mlp import critic, orthogonal_mlp, tanh_action
from agentkit.networks.network import Network, make_network
from agentkit.networks.tanh_normal import TanhNormal
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
"""Bounds of the log standard deviation of `gaussian_action`: those of IQL's authors."""


class ActorCriticNetworks(NamedTuple):
    """Holds the networks of an environment as pure functions.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]``, or a distribution of actions.
        critic: ``observation [B, ...], action [B, A] -> q [B]``, or whatever an algorithm's critic says of them.
        action_shape: ``(A,)``.
    """

    policy: Network
    critic: Network
    action_shape: tuple[int, ...]


def actor_critic_networks(
    environment_spec: specs.EnvironmentSpec,
    agent: str,
    policy: Callable[[Nest, int], Any],
    critic: Callable[[Nest, Array], Any],
) -> ActorCriticNetworks:
    """Makes networks for an environment of continuous actions in [-1, 1].

    Args:
        environment_spec: of the environment.
        agent: who needs them, for the error.
        policy: ``(observation [B, ...], A) -> action`` or distribution; uses Haiku modules.
        critic: ``(observation [B, ...], action [B, A]) -> q``; likewise.

    Raises:
        SpecError: other actions.
    """
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(actions, agent)
    acting = make_network(lambda observation: policy(observation, size), observations)
    return ActorCriticNetworks(acting, make_network(critic, observations, actions), (size,))


def deterministic_networks(
    environment_spec: specs.EnvironmentSpec,
    agent: str,
    hidden_sizes: Sequence[int],
    critic: Callable[..., Any],
    torso: Torso = torso,
) -> ActorCriticNetworks:
    """Makes networks with `tanh_action` as policy; `critic` takes `hidden_sizes` and ``torso=`` after the action."""
    return actor_critic_networks(
        environment_spec,
        agent,
        policy=lambda observation, size: tanh_action(observation, size, hidden_sizes, torso),
        critic=lambda observation, action: critic(observation, action, hidden_sizes, torso=torso),
    )


def tanh_normal_action(
    observation: Nest,
    action_size: int,
    hidden_sizes: Sequence[int],
    min_log_std: float,
    max_log_std: float,
    torso: Torso = torso,
) -> TanhNormal:
    """Returns a policy's squashed Gaussian of ``[B, A]``, whose deviation depends on the observation.

    See Haarnoja et al. 2018 (1812.05905), appendix C.
    """
    outputs = orthogonal_mlp(torso(observation), hidden_sizes, 2 * action_size, output_scale=0.01)
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return TanhNormal(mean, jnp.clip(log_std, min_log_std, max_log_std))


def gaussian_action(
    observation: Nest, action_size: int, hidden_sizes: Sequence[int], torso: Torso = torso
) -> DiagonalNormal:
    """Returns a policy's Gaussian of ``[B, A]``, means in [-1, 1], with one learned deviation for all observations."""
    mean = tanh_action(observation, action_size, hidden_sizes, torso)  # [B, A]
    log_std = jnp.clip(hk.get_parameter("log_std", (action_size,), init=jnp.zeros), MIN_LOG_STD, MAX_LOG_STD)
    return DiagonalNormal(mean, jnp.broadcast_to(log_std, mean.shape))


def action_value(observation: Nest, action: Array, hidden_sizes: Sequence[int], torso: Torso = torso) -> jax.Array:
    """Returns a critic's value ``[B]`` of actions ``[B, A]``."""
    return critic(observation, action, hidden_sizes, torso=torso)[:, 0]


def twin_action_values(
    observation: Nest, action: Array, hidden_sizes: Sequence[int], torso: Torso = torso
) -> tuple[Array, Array]:
    """Returns values ``[B]`` by two critics of actions ``[B, A]``, which share nothing (Fujimoto et al. 2018)."""
    # No array [2, B]: to climb one of its rows would compute the other's gradient, too.
    one, other = (action_value(observation, action, hidden_sizes, torso) for _ in range(2))
    return one, other


def state_value(observation: Nest, hidden_sizes: Sequence[int], torso: Torso = torso) -> jax.Array:
    """Returns the value ``[B]`` of observations."""
    return orthogonal_mlp(torso(observation), hidden_sizes, 1)[:, 0]
