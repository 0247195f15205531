"""Acting with a policy that is a distribution: by samples of it, in evaluation by its mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Params, Policy, stateless_policy
from agentkit.types import Array, Nest

DistributionAt = Callable[[Params, Nest], Any]
"""``(params, observation [B, ...]) -> distribution`` of actions ``[B, ...]``, as a network gives it."""


def clipped_samples(distribution_at: DistributionAt, evaluation: bool) -> Policy:
    """Actions ``[A]`` of a Gaussian, clipped to [-1, 1].

    Args:
        distribution_at: the network; its distributions have ``sample(key)`` and ``mode()``.
        evaluation: whether the policy is to be judged: then it takes the mean.
    """

    def act(params: Params, key: jax.Array, observation: Nest) -> Array:
        distribution = distribution_at(params, jax.tree.map(lambda x: x[None], observation))
        action = distribution.mode() if evaluation else distribution.sample(key)
        return jnp.clip(action[0], -1.0, 1.0)

    return stateless_policy(act)


def uniform_then_samples(
    distribution_at: DistributionAt,
    sample: Callable[[Any, jax.Array], Array],
    uniform: Callable[[jax.Array, Nest], Array],
    num_random_steps: int,
) -> Policy:
    """Actions of a distribution, uniform ones at first; its state is the number of steps taken, int32 ``[]``.

    Args:
        distribution_at: the network.
        sample: ``(distribution, key) -> action [B, ...]``.
        uniform: ``(key, observation [1, ...]) -> action``, without a batch axis.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    def act(params: Params, key: jax.Array, observation: Nest, num_steps: Array) -> tuple[Nest, Nest, Nest]:
        batch = jax.tree.map(lambda x: x[None], observation)
        distribution = distribution_at(params, batch)
        sample_key, uniform_key = jax.random.split(key)
        action = sample(distribution, sample_key)[0]
        return jnp.where(num_steps < num_random_steps, uniform(uniform_key, batch), action), num_steps + 1, ()

    return Policy(act, init=lambda key: jnp.zeros((), jnp.int32))


def likeliest(distribution_at: DistributionAt, mode: Callable[[Any], Array]) -> Policy:
    """The mode of a distribution: the policy to be judged by."""
    return stateless_policy(
        lambda params, key, observation: mode(distribution_at(params, jax.tree.map(lambda x: x[None], observation)))[0]
    )
