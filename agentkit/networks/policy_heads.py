"""Policy heads for discrete, multi-discrete and continuous actions, and nests of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.networks.action_mask import mask_illegal, refuse_action_mask
from agentkit.networks.distributions import Categorical, DiagonalNormal, Joint
from agentkit.networks.mlp import orthogonal_mlp
from agentkit.types import Array, Nest

_MAX_OUTPUTS = 16_384


def check_policy_actions(actions: Nest, agent: str) -> None:
    """Refuses actions that `policy_head` is not for.

    Raises:
        SpecError: the message names the `agent`.
    """
    for leaf in tree.flatten(actions):
        if isinstance(leaf, specs.DiscreteArray):
            continue
        if _is_multi_discrete(leaf) and leaf.shape:
            _check_number(leaf, agent)
            continue
        if not (np.issubdtype(leaf.dtype, np.floating) and specs.has_finite_bounds(leaf)):
            raise SpecError(
                f"{agent} needs discrete actions (a dm_env DiscreteArray), multi-discrete ones (a BoundedArray of "
                f"integers), continuous ones with finite bounds (a BoundedArray of floats), or a nest of these; "
                f"found {leaf!r:.300}. Wrap the environment so that it takes one of them; unbounded ones with "
                "--wrapper 'bound_actions(minimum=-1, maximum=1)'."
            )
    if not tree.flatten(actions):
        raise SpecError(f"{agent} needs at least one action, found {actions!r}.")


def _check_number(spec: specs.BoundedArray, agent: str) -> None:
    """Refuses integers that choose between so many values that each cannot have an output."""
    if (total := sum(_num_values(spec))) > _MAX_OUTPUTS:
        raise SpecError(
            f"{agent} has an output for each value of an integer action: expected at most {_MAX_OUTPUTS:,} in all, "
            f"found {total:,} in {spec!r:.300}. Give the integers closer bounds, or round floats in a wrapper."
        )


def _is_multi_discrete(spec: specs.Array) -> bool:
    return isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.integer)


class PolicyExtras(NamedTuple):
    """Holds the data that are stored with an action.

    Attributes:
        sample: as drawn, before it was clipped: int32 ``[]`` for a discrete action, float32 ``[A]`` for a
            continuous one, A its size; a tuple of these where an action has several parts.
        log_prob: its log-probability when it was drawn, float32 ``[]``.
        core: the network's state before it saw the observation; ``()`` of one without a memory.
        columns: what `ExperimentConfig.columns` asks for, by name; ``()`` for nothing.
    """

    sample: Any
    log_prob: Any
    core: Any = ()
    columns: Any = ()


def policy_extras_spec(actions: Nest) -> PolicyExtras:
    """Returns the specs of `PolicyExtras` for these actions, by a network without a memory."""
    return PolicyExtras(_sample_spec(actions), specs.Array((), np.float32, "log_prob"))


def _sample_spec(actions: Nest) -> Any:
    if not specs.is_spec(actions):
        return tuple(_sample_spec(leaf) for leaf in tree.flatten(actions))
    if isinstance(actions, specs.DiscreteArray):
        return specs.Array((), np.int32, "sample")
    if _is_multi_discrete(actions):
        return tuple(specs.Array((), np.int32, "sample") for _ in _num_values(actions))
    return specs.Array((int(np.prod(actions.shape)),), np.float32, "sample")


def _num_values(spec: specs.BoundedArray) -> list[int]:
    """Returns the number of values of each integer of a multi-discrete action."""
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in (spec.minimum, spec.maximum))
    return [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)]  # Python's: no overflow.


def policy_head(
    features: Array, actions: Nest, hidden_sizes: Sequence[int], initial_std: float, observation: Nest = ()
) -> Categorical | DiagonalNormal | Joint:
    """Applies tanh layers; returns a distribution of actions that hardly depends on the features at first.

    Args:
        features: ``[B, F]``.
        actions: their specs; see `check_policy_actions`.
        hidden_sizes: units of each layer.
        initial_std: of a Gaussian, whose standard deviation is learned and does not depend on the features.
        observation: ``[B, ...]``; one discrete action keeps to its mask, where it has one.

    Raises:
        SpecError: a mask for actions of another kind.
    """
    leaves = tree.flatten(actions)
    num_outputs = sum(_num_outputs(leaf) for leaf in leaves)
    outputs = orthogonal_mlp(features, hidden_sizes, num_outputs, 0.01, jnp.tanh)  # [B, outputs of all leaves]
    if isinstance(actions, specs.DiscreteArray):
        return Categorical(mask_illegal(outputs, observation))
    refuse_action_mask(observation)
    parts, start = [], 0
    for i, leaf in enumerate(leaves):
        part = outputs[:, start : start + _num_outputs(leaf)]
        parts.append(_distribution(part, leaf, initial_std, "log_std" if i == 0 else f"log_std_{i}"))
        start += _num_outputs(leaf)
    return parts[0] if specs.is_spec(actions) else Joint(tuple(parts))


def _num_outputs(spec: specs.Array) -> int:
    if isinstance(spec, specs.DiscreteArray):
        return int(spec.num_values)
    return sum(_num_values(spec)) if _is_multi_discrete(spec) else int(np.prod(spec.shape))


def _distribution(
    outputs: Array, spec: specs.Array, initial_std: float, name: str
) -> Categorical | DiagonalNormal | Joint:
    """Returns the distribution of one leaf, from outputs ``[B, N]``; `name` is of a Gaussian's log-std parameter."""
    if isinstance(spec, specs.DiscreteArray):
        return Categorical(outputs)
    if _is_multi_discrete(spec):
        ends = np.cumsum(_num_values(spec))[:-1]
        return Joint(tuple(Categorical(logits) for logits in jnp.split(outputs, ends, axis=-1)))
    log_std = hk.get_parameter(name, outputs.shape[1:], init=hk.initializers.Constant(jnp.log(initial_std)))
    return DiagonalNormal(outputs, jnp.broadcast_to(log_std, outputs.shape))


def sample_to_action(actions: Nest) -> Callable[[Any], Nest]:
    """Returns a function from a sample, without a batch axis, to the environment's action.

    A discrete one is itself; a continuous one is clipped to [-1, 1], and this mapped onto the bounds.
    """
    if specs.is_spec(actions):
        return _leaf_to_action(actions)
    functions = [_leaf_to_action(leaf) for leaf in tree.flatten(actions)]

    def to_action(sample: tuple[Any, ...]) -> Nest:
        return tree.unflatten_as(actions, [convert(x) for convert, x in zip(functions, sample, strict=True)])

    return to_action


def _leaf_to_action(spec: Any) -> Callable[[Any], Array]:
    if isinstance(spec, specs.DiscreteArray):
        return lambda sample: sample.astype(spec.dtype)
    low = np.broadcast_to(spec.minimum, spec.shape).astype(spec.dtype)
    high = np.broadcast_to(spec.maximum, spec.shape).astype(spec.dtype)
    if _is_multi_discrete(spec):
        return lambda sample: low + jnp.stack(sample).astype(spec.dtype).reshape(spec.shape)

    def to_action(sample: Array) -> jax.Array:
        unit = jnp.clip(sample, -1.0, 1.0).reshape(spec.shape).astype(spec.dtype)
        return jnp.clip(low + (unit + 1.0) * (high / 2 - low / 2), low, high)

    return to_action
