"""A policy's head for the kinds of actions that policy gradients take: one discrete, or one bounded and continuous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.networks.distributions import Categorical, DiagonalNormal
from agentkit.networks.mlp import orthogonal_mlp
from agentkit.types import Array, Nest


def check_policy_actions(actions: Nest, agent: str) -> None:
    """Refuses actions that `policy_head` is not for.

    Raises:
        SpecError: `agent` is who needs them.
    """
    if isinstance(actions, specs.DiscreteArray):
        return
    is_float = isinstance(actions, specs.BoundedArray) and np.issubdtype(actions.dtype, np.floating)
    if not (is_float and np.all(np.isfinite(actions.minimum)) and np.all(np.isfinite(actions.maximum))):
        raise SpecError(
            f"{agent} needs one discrete action (a dm_env DiscreteArray) or one continuous action with finite bounds "
            f"(a BoundedArray of floats), found {actions!r}. Wrap the environment so that it takes one of them."
        )


class Sampled(NamedTuple):
    """What is stored with an action.

    Attributes:
        sample: what was drawn, before it was clipped: int32 ``[]``, or float32 ``[A]``, A the action's size.
        log_prob: its log-probability when it was drawn, float32 ``[]``.
    """

    sample: Any
    log_prob: Any


def sampled_spec(actions: specs.Array) -> Sampled:
    """The specs of `Sampled` for these actions."""
    log_prob = specs.Array((), np.float32, "log_prob")
    if isinstance(actions, specs.DiscreteArray):
        return Sampled(specs.Array((), np.int32, "sample"), log_prob)
    return Sampled(specs.Array((int(np.prod(actions.shape)),), np.float32, "sample"), log_prob)


def policy_head(
    features: Array, actions: specs.Array, hidden_sizes: Sequence[int], initial_std: float
) -> Categorical | DiagonalNormal:
    """Tanh layers, and a distribution of actions that hardly depends on the features at first.

    Args:
        features: ``[B, F]``.
        actions: their spec; see `check_policy_actions`.
        hidden_sizes: units of each layer.
        initial_std: of a Gaussian, whose standard deviation is learned and does not depend on the features.
    """
    if isinstance(actions, specs.DiscreteArray):
        return Categorical(orthogonal_mlp(features, hidden_sizes, actions.num_values, 0.01, jnp.tanh))
    mean = orthogonal_mlp(features, hidden_sizes, int(np.prod(actions.shape)), 0.01, jnp.tanh)  # [B, A]
    log_std = hk.get_parameter("log_std", mean.shape[1:], init=hk.initializers.Constant(np.log(initial_std)))
    return DiagonalNormal(mean, jnp.broadcast_to(log_std, mean.shape))


def sample_to_action(actions: Any) -> Callable[[Array], Array]:
    """From a sample, without a batch axis, to the action as the environment takes it.

    A discrete one is itself; a continuous one is clipped to [-1, 1], and this mapped onto the bounds.
    """
    if isinstance(actions, specs.DiscreteArray):
        return lambda sample: sample.astype(actions.dtype)
    low = np.broadcast_to(actions.minimum, actions.shape).astype(actions.dtype)
    high = np.broadcast_to(actions.maximum, actions.shape).astype(actions.dtype)

    def to_action(sample: Array) -> Array:
        unit = jnp.clip(sample, -1.0, 1.0).reshape(actions.shape).astype(actions.dtype)
        return jnp.clip(low + (unit + 1.0) * ((high - low) / 2), low, high)

    return to_action
