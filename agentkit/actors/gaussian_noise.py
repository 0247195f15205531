"""Deterministic policies of continuous actions in [-1, 1]: with Gaussian noise to explore, without to evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Params, Policy, stateless_policy, unchanged
from agentkit.actors.step_count import count_from, count_one_more, no_steps, steps_taken
from agentkit.errors import ConfigError
from agentkit.types import Array, Nest

Deterministic = Callable[[Params, Nest], Array]
"""``(params, observation [B, ...]) -> action [B, A]``, as a network gives it."""


class NoiseState(NamedTuple):
    """Holds the state of `gaussian_noise_policy`.

    Attributes:
        noise: what was added last, float32 ``[A]``; zero at the start of an episode.
        steps: the step count of all environments of its actor, see `step_count`.
    """

    noise: Array
    steps: Array


def deterministic_policy(network: Deterministic) -> Policy:
    """Returns a policy of the network's own actions, for evaluation."""
    return stateless_policy(lambda params, key, observation: _single(network, params, observation))


def gaussian_noise_policy(
    network: Deterministic,
    action_shape: tuple[int, ...],
    stddev: float,
    num_random_steps: int = 0,
    correlation: float = 0.0,
) -> Policy:
    """Returns a policy that adds Gaussian noise to the network's actions, clips to [-1, 1], and begins uniformly.

    With a `correlation` rho the noise is an Ornstein-Uhlenbeck process seen once a step,
    x_t = rho x_{t-1} + sqrt(1 - rho^2) sigma e_t with e_t ~ N(0, 1): its standard deviation tends to
    `stddev` whatever rho is (Uhlenbeck & Ornstein 1930; for exploration, Lillicrap et al. 2016, section 3).

    Args:
        network: the deterministic policy.
        action_shape: ``(A,)``.
        stddev: sigma, in units of half the action range, >= 0.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
        correlation: rho, from one step to the next, in [0, 1); 0 for independent noise.

    Raises:
        ConfigError: a negative sigma, or rho out of range.
    """
    if not stddev >= 0:
        raise ConfigError(f"The exploration noise must be at least 0, found {stddev}.")
    if not 0 <= correlation < 1:
        raise ConfigError(f"The exploration noise's correlation must be in [0, 1), found {correlation}.")
    fresh = stddev * (1.0 - correlation**2) ** 0.5

    def init(key: Any) -> NoiseState:
        return NoiseState(jnp.zeros(action_shape), no_steps(key))

    def act(params: Params, key: Any, observation: Nest, state: NoiseState) -> tuple[Nest, NoiseState, Nest]:
        noise_key, uniform_key = jax.random.split(key)
        noise = correlation * state.noise + fresh * jax.random.normal(noise_key, action_shape)
        explored = jnp.clip(_single(network, params, observation) + noise, -1.0, 1.0)
        uniform = jax.random.uniform(uniform_key, action_shape, minval=-1.0, maxval=1.0)
        action = jnp.where(steps_taken(state.steps) < num_random_steps, uniform, explored)
        return action, NoiseState(noise, count_one_more(state.steps)), ()

    def silence(state: NoiseState) -> NoiseState:
        return state._replace(noise=jnp.zeros_like(state.noise))

    def begin(state: NoiseState, num_steps: Array, num_envs: int) -> NoiseState:
        return state._replace(steps=count_from(state.steps, num_steps, num_envs))

    return Policy(act, init, reset=silence if correlation else unchanged, begin=begin)


def _single(network: Deterministic, params: Params, observation: Nest) -> Array:
    return network(params, jax.tree.map(lambda x: x[None], observation))[0]  # [A]
