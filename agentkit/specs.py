"""Specs: the shapes and dtypes an environment promises, and checks of data against them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tree
from dm_env import specs

from agentkit.errors import SpecError
from agentkit.types import Nest

Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray

ACTION_MASK = "action_mask"
"""The key of an observation under which an environment says which discrete actions may be taken."""

ILLEGAL_VALUE = -1e9
"""What networks say of those that may not: finite, so that nothing times it is NaN."""


class EnvironmentSpec(NamedTuple):
    """Holds the specs of one environment, without a batch axis: its inputs and outputs.

    Attributes:
        observations: nest of specs.
        actions: nest of specs.
        rewards: nest of specs.
        discounts: nest of specs.
        columns: by name, of what is stored beside the steps (`ExperimentConfig.columns`); ``()`` for nothing.
    """

    observations: Nest
    actions: Nest
    rewards: Nest
    discounts: Nest
    columns: Nest = ()


def make_environment_spec(environment: Any) -> EnvironmentSpec:
    """Reads the specs off a dm_env environment, or off a batch of them (without its [N]).

    Raises:
        SpecError: a leaf is no spec.
    """
    spec = EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
        columns=getattr(environment, "columns_spec", tuple)(),
    )
    for part, nest in zip(("observation", "action", "reward", "discount", "columns"), spec, strict=True):
        for leaf in tree.flatten(nest):
            if not is_spec(leaf):
                raise SpecError(
                    f"{type(environment).__name__}.{part}_spec(): expected a dm_env spec (or a nest of them), found "
                    f"{leaf!r:.80}. See dm_env.specs."
                )
    return spec


def is_spec(value: Any) -> bool:
    """Returns whether `value` is a single array spec, and no nest or array."""
    return isinstance(value, specs.Array)


def zeros(spec: Nest) -> Nest:
    """Returns a nest of zero arrays of `spec`'s shapes and dtypes."""
    return tree.map_structure(lambda s: np.zeros(s.shape, s.dtype), spec)


def add_leading(spec: Nest, length: int) -> Nest:
    """Makes every leaf's shape ``[...]`` of `spec` ``[length, ...]``; bounds are dropped."""
    return tree.map_structure(lambda s: specs.Array((length, *s.shape), s.dtype, s.name), spec)


def to_arrays(spec: Nest) -> Nest:
    """Drops the bounds of `spec`: tables store plain arrays."""
    return tree.map_structure(lambda s: specs.Array(s.shape, s.dtype, s.name), spec)


def num_discrete_actions(actions: Nest, agent: str) -> int:
    """Returns A, where `actions` is one choice among A.

    Raises:
        SpecError: it is anything else; `agent` is who needs it.
    """
    if not isinstance(actions, DiscreteArray):
        raise SpecError(
            f"{agent} needs one discrete action (a dm_env DiscreteArray), found {_said(actions)}. "
            "Use an agent for such actions (sac for continuous ones, ppo for several at once), or offer a grid over "
            "bounded ones as one choice: --wrapper 'discretise(bins=11)'."
        )
    return int(actions.num_values)


def canonical_action_size(actions: Nest, agent: str) -> int:
    """Returns A, where `actions` is one continuous array ``[A]`` in [-1, 1].

    Raises:
        SpecError: it is anything else; `agent` is who needs it.
    """
    if (
        not isinstance(actions, BoundedArray)
        or not np.issubdtype(actions.dtype, np.floating)
        or len(actions.shape) != 1
        or not (np.all(actions.minimum == -1.0) and np.all(actions.maximum == 1.0))
    ):
        raise SpecError(
            f"{agent} needs one continuous action of shape [A] with bounds -1 and 1 (bounded ones are scaled and "
            f"flattened to that), found {_said(actions)}. {_advice(actions)}"
        )
    return int(actions.shape[0])


def _said(actions: Nest) -> str:
    """Returns actions in words, as far as there are short ones."""
    if isinstance(actions, DiscreteArray):
        return f"one discrete action of {actions.num_values}"
    if is_spec(actions) and actions.dtype.kind == "f":
        bounds = "with" if isinstance(actions, BoundedArray) else "without"
        return f"continuous actions of shape {list(actions.shape)} {bounds} bounds"
    return f"{actions!r:.300}"


def _advice(actions: Nest) -> str:
    """Says what to do about actions that are not one bounded continuous one."""
    if is_spec(actions) and actions.dtype.kind == "f":
        return "Give unbounded actions bounds: --wrapper 'bound_actions(minimum=-1, maximum=1)'."
    return "Use an agent for discrete actions, such as dqn, or for several at once, such as ppo."


def leaf_names(nest: Nest) -> list[str]:
    """Returns the path of every leaf, in flattening order, e.g. ``observation/position``."""
    return ["/".join(map(str, path)) or "value" for path, _ in tree.flatten_with_path(nest)]


def in_words(spec: Nest) -> str:
    """Returns a nest of specs as one short line: names, dtypes, shapes and bounds.

    >>> in_words({"image": BoundedArray((64, 64, 3), np.uint8, 0, 255), "choice": DiscreteArray(4)})
    'choice: one of 4, image: uint8[64, 64, 3] from 0 to 255'
    """
    leaves = [_leaf_in_words(leaf) for leaf in tree.flatten(spec)]
    if is_spec(spec):
        return leaves[0]
    return ", ".join(f"{name}: {leaf}" for name, leaf in zip(leaf_names(spec), leaves, strict=True))


def _leaf_in_words(leaf: specs.Array) -> str:
    if isinstance(leaf, DiscreteArray):
        return f"one of {leaf.num_values}"
    text = f"{leaf.dtype.name}{list(leaf.shape)}"
    if not isinstance(leaf, BoundedArray) or not (np.isfinite(leaf.minimum).all() and np.isfinite(leaf.maximum).all()):
        return text
    or_more, or_less = (np.ptp(bound) > 0 for bound in (leaf.minimum, leaf.maximum))
    lowest = f"{np.min(leaf.minimum):g}{' or more' if or_more else ''}"
    return f"{text} from {lowest} to {np.max(leaf.maximum):g}{' or less' if or_less else ''}"


def spec_of(nest: Nest) -> Nest:
    """Returns the plain array specs of a nest of arrays or scalars."""
    return tree.map_structure(lambda x: specs.Array(np.shape(x), np.asarray(x).dtype), nest)


def validate(value: Nest, spec: Nest, what: str = "value") -> None:
    """Checks structure, shape and dtype of `value` against `spec`.

    Raises:
        SpecError: naming the leaf, what was expected there and what was found.
    """
    try:
        tree.assert_same_structure(spec, value)
    except (ValueError, TypeError) as error:
        expected, found = leaf_names(spec), leaf_names(value)
        why = f" {error}" if expected == found else ""  # dm-tree's own words are long.
        raise SpecError(
            f"{what} has another structure than its spec: expected leaves {expected}, found {found}.{why}"
        ) from error
    for name, leaf_spec, leaf in zip(leaf_names(spec), tree.flatten(spec), tree.flatten(value), strict=True):
        array = np.asarray(leaf)
        if array.shape != tuple(leaf_spec.shape) or array.dtype != leaf_spec.dtype:
            raise SpecError(
                f"{what} leaf {name!r}: expected {leaf_spec.dtype.name}{list(leaf_spec.shape)}, "
                f"found {array.dtype.name}{list(array.shape)}. Cast or reshape it before it is added, "
                "or correct the spec."
            )


def check_is_environment(environment: Any) -> None:
    """Refuses an object that is not a dm_env environment, saying how to adapt the usual others."""
    needed = ("reset", "step", "observation_spec", "action_spec", "reward_spec", "discount_spec")
    missing = [name for name in needed if not callable(getattr(environment, name, None))]
    if missing:
        raise SpecError(
            f"Expected a dm_env environment, found {type(environment).__name__} without "
            f"{', '.join(missing)}. A gymnasium environment is adapted by "
            "agentkit.envs.gymnasium.GymnasiumEnvironment(env)."
        )


def is_batched(environment: Any) -> bool:
    """Returns whether an environment steps `num_envs` environments at once (leading axis [N])."""
    return getattr(environment, "num_envs", None) is not None
