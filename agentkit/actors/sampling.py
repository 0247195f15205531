"""Policies that are distributions of actions: sampled to explore, their mode taken to evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Params, Policy, stateless_policy
from agentkit.actors.step_count import count_from, count_one_more, no_steps, steps_taken
from agentkit.types import Array, Nest

DistributionAt = Callable[[Params, Nest], Any]
"""``(params, observation [B, ...]) -> distribution`` of actions ``[B, ...]``, as a network gives it."""


def clipped_gaussian_policy(distribution_at: DistributionAt, evaluation: bool) -> Policy:
    """Returns a policy of a Gaussian's actions ``[A]``, clipped to [-1, 1].

    Args:
        distribution_at: the network; its distributions have ``sample(key)`` and ``mode()``.
        evaluation: whether to take the mean instead of a sample.
    """

    def act(params: Params, key: jax.Array, observation: Nest) -> Array:
        distribution = distribution_at(params, jax.tree.map(lambda x: x[None], observation))
        action = distribution.mode() if evaluation else distribution.sample(key)
        return jnp.clip(action[0], -1.0, 1.0)

    return stateless_policy(act)


def sampling_policy(
    distribution_at: DistributionAt,
    sample: Callable[[Any, jax.Array], Array],
    uniform: Callable[[jax.Array, Nest], Array],
    num_random_steps: int,
) -> Policy:
    """Returns a policy that samples a distribution after uniform actions at first.

    Its state is the step count of all environments of its actor.

    Args:
        distribution_at: the network.
        sample: ``(distribution, key) -> action [B, ...]``.
        uniform: ``(key, observation [1, ...]) -> action``, without a batch axis.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
    """

    def act(params: Params, key: jax.Array, observation: Nest, count: Array) -> tuple[Nest, Nest, Nest]:
        batch = jax.tree.map(lambda x: x[None], observation)
        distribution = distribution_at(params, batch)
        sample_key, uniform_key = jax.random.split(key)
        action = sample(distribution, sample_key)[0]
        is_early = steps_taken(count) < num_random_steps
        return jnp.where(is_early, uniform(uniform_key, batch), action), count_one_more(count), ()

    return Policy(act, init=no_steps, begin=count_from)


def uniform_action(action_shape: tuple[int, ...]) -> Callable[[jax.Array, Nest], Array]:
    """Returns ``(key, observation) -> action [A]``, which draws uniformly from [-1, 1] whatever the observation."""

    def uniform(key: jax.Array, observation: Nest) -> Array:
        del observation
        return jax.random.uniform(key, action_shape, minval=-1.0, maxval=1.0)

    return uniform


def mode_policy(distribution_at: DistributionAt, mode: Callable[[Any], Array]) -> Policy:
    """Returns a policy of a distribution's mode, for evaluation."""
    return stateless_policy(
        lambda params, key, observation: mode(distribution_at(params, jax.tree.map(lambda x: x[None], observation)))[0]
    )
