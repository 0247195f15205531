"""Specs: the shapes and dtypes an environment promises, and checks of data against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
import tree
from dm_env import specs

from agentkit.errors import SpecError
from agentkit.types import Nest

Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray


@final
class DiscreteFrom(specs.DiscreteArray):
    """Describes a choice that counts from 0 here, and from `start` in the environment's own terms."""

    def __init__(self, num_values: int, dtype: Any = np.int32, name: str | None = None, start: int = 0):
        super().__init__(num_values, dtype, name)
        self.start = int(start)

    def __reduce__(self) -> Any:
        return DiscreteFrom, (self.num_values, self.dtype, self.name, self.start)


@final
class BoundedFrom(specs.BoundedArray):
    """Describes several choices that count from 0 here, and from `start` in the environment's own terms."""

    def __init__(self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: str | None = None, start: Any = 0):
        super().__init__(shape, dtype, minimum, maximum, name)
        self.start = np.asarray(start)

    def __reduce__(self) -> Any:
        return BoundedFrom, (self.shape, self.dtype, self.minimum, self.maximum, self.name, self.start)


@final
class Choices(specs.BoundedArray):
    """Describes an array of any shape whose numbers are choices, from 0 to `maximum`, and no sizes."""

    def __init__(self, shape: Any, dtype: Any, maximum: Any, name: str | None = None):
        super().__init__(shape, dtype, 0, maximum, name)

    def __reduce__(self) -> Any:
        return Choices, (self.shape, self.dtype, self.maximum, self.name)


ACTION_MASK = "action_mask"
"""The key of an observation under which an environment says which discrete actions may be taken."""

ILLEGAL_VALUE = -1e9
"""What networks say of those that may not: finite, so that nothing times it is NaN."""


MIN_PIXELS = 5
"""How many numbers an array has along two of its axes at least, to be taken for an image."""

_MAX_VALUES, _MAX_VALUES_OF_MANY = 1024, 64


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


def is_finite_bound(bound: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns of each number of a bound whether it bounds anything: the largest float, or wide integer, does not.

    Args:
        bound: of an array.
        dtype: of the array.
    """
    if dtype.kind == "f":
        return np.abs(bound) < min(np.finfo(dtype).max, np.finfo(np.float32).max)
    if dtype.kind not in "iu" or dtype.itemsize < 4:
        return np.ones(np.shape(bound), bool)
    ends = np.iinfo(dtype)
    return (bound < ends.max) & ((bound > ends.min) | (bound == 0))


def has_finite_bounds(spec: specs.Array) -> bool:
    """Returns whether each number of an array has a minimum and a maximum, both as `is_finite_bound` says."""
    return isinstance(spec, BoundedArray) and all(
        bool(is_finite_bound(bound, spec.dtype).all()) for bound in (spec.minimum, spec.maximum)
    )


def num_choices(spec: specs.Array) -> list[int]:
    """Returns how many values each number of a leaf chooses from; nothing where its numbers are sizes.

    Choices are each DiscreteArray of at most 1,024 values, and each vector of int32 or int64 that begin at 0 and have
    at most 64 values (gymnasium's MultiDiscrete); and what says so, `Choices`.
    """
    if isinstance(spec, Choices):
        return [int(n) + 1 for n in np.broadcast_to(spec.maximum, spec.shape).flat]
    if isinstance(spec, DiscreteArray):
        return [int(spec.num_values)] if spec.num_values <= _MAX_VALUES else []
    is_vector = isinstance(spec, BoundedArray) and len(spec.shape) == 1
    if not is_vector or spec.dtype not in (np.int32, np.int64) or (spec.minimum != 0).any():
        return []
    counts = [int(n) + 1 for n in np.broadcast_to(spec.maximum, spec.shape)]
    return counts if max(counts, default=0) <= _MAX_VALUES_OF_MANY else []


def is_image(shape: tuple[int, ...]) -> bool:
    """Returns whether an array of this shape, without a batch axis, is taken for an image, or a stack of images."""
    if len(shape) == 4:  # [S, H, W, C]
        return is_image(shape[1:])
    return len(shape) == 3 and min(shape[axis] for axis in image_axes(shape)) >= MIN_PIXELS


def image_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns which axes of an image of this shape, without a batch axis, are its height and its width."""
    first = len(shape) - 3 + is_channels_first(shape)
    return first, first + 1


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Returns whether an image, or each of a stack of images, is ``[C, H, W]``: with fewer channels than pixels."""
    channels, height, width = shape[-3:]
    return channels < min(height, width)


def changes_sides(discounts: Nest) -> bool:
    """Returns whether discounts may be -1 by their spec: what follows is worth to another player, and not to this one.

    See `envs.multi_agent.both_sides.BothSides`.
    """
    return any(np.any(np.equal(getattr(leaf, "minimum", 0.0), -1.0)) for leaf in tree.flatten(discounts))


def find_action_mask(observation: Nest, actions: Nest) -> Any:
    """Returns the `ACTION_MASK` of an observation, however deep in it that is; None for none.

    Beside anything but one `DiscreteArray` as `actions` it says nothing, and is None.
    """
    if not isinstance(actions, DiscreteArray):
        return None
    leaves = tree.flatten_with_path(observation)
    return next((leaf for path, leaf in leaves if path and path[-1] == ACTION_MASK), None)


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
        of_data = is_spec(actions) and actions.dtype.kind == "f" and actions.shape == ()
        raise SpecError(
            f"{agent} needs one discrete action (a dm_env DiscreteArray), found {_said(actions)}. "
            f"{'Are these choices, in data of their own? Cast them to int32. ' * of_data}"
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
    return f"{leaf.dtype.name}{list(leaf.shape)}{_bounds_in_words(leaf)}"


def _bounds_in_words(leaf: specs.Array) -> str:
    if leaf.dtype == bool:  # False and True go without saying.
        return ""
    if not isinstance(leaf, BoundedArray) or not (np.isfinite(leaf.minimum).all() and np.isfinite(leaf.maximum).all()):
        return ""
    or_more, or_less = (np.ptp(bound) > 0 for bound in (leaf.minimum, leaf.maximum))
    lowest = f"{np.min(leaf.minimum):g}{' or more' if or_more else ''}"
    return f" from {lowest} to {np.max(leaf.maximum):g}{' or less' if or_less else ''}"


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


def start_of(spec: specs.Array) -> Any:
    """Returns what the environment itself counts a leaf's choices from, where agentkit counts from 0; else 0."""
    return getattr(spec, "start", 0)


def in_own_terms(spec: Nest) -> Nest:
    """Returns a nest of specs with choices in the environment's own terms: from `start_of` them, and not from 0."""

    def own(leaf: specs.Array) -> specs.Array:
        start = start_of(leaf)
        if not np.any(start):
            return leaf
        low, high = (bound.astype(np.int64) + start for bound in (leaf.minimum, leaf.maximum))
        info = np.iinfo(np.int32)
        narrow = np.min(low) >= info.min and np.max(high) <= info.max
        return BoundedArray(leaf.shape, np.int32 if narrow else np.int64, low, high, leaf.name)

    return tree.map_structure(own, spec)


def from_own_terms(value: Nest, spec: Nest) -> Nest:
    """Returns a value of ``in_own_terms(spec)``, with leading axes or without, as one of `spec`."""

    def shift(leaf: specs.Array, array: np.ndarray) -> np.ndarray:
        start = start_of(leaf)
        return np.asarray(array - start, leaf.dtype) if np.any(start) else array

    return tree.map_structure_up_to(spec, shift, spec, value)


def to_own_terms(value: Nest, spec: Nest) -> Nest:
    """Returns a value of `spec`, with leading axes or without, as one of ``in_own_terms(spec)``."""

    def shift(leaf: specs.Array, own: specs.Array, array: Any) -> Any:
        start = start_of(leaf)
        return np.asarray(np.asarray(array, np.int64) + start, own.dtype) if np.any(start) else array

    return tree.map_structure_up_to(spec, shift, spec, in_own_terms(spec), value)


def fit(value: Nest, spec: Nest, what: str = "value", **options: Any) -> Nest:
    """Returns a value as arrays of its spec; refuses one that these would not say the same as.

    Each leaf is taken as `fit_array` does, which says what is checked.

    Args:
        value: in the structure of `spec`; lists do for tuples.
        spec: nest of specs.
        what: what errors call it, with the environment or the file that it is from.
        **options: see `fit_array`.

    Raises:
        SpecError: naming the leaf, what was expected there and what was found.
    """
    if is_spec(spec):
        return fit_array(value, spec, what, **options)
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise SpecError(f"{what}: expected a dictionary of {', '.join(map(str, spec))}, found {brief(value)}.")
        return {key: fit(value[key], child, f"{what}/{key}", **options) for key, child in spec.items()}
    if not isinstance(value, tuple | list) or len(value) != len(spec):
        raise SpecError(f"{what}: expected a tuple of {len(spec)}, found {brief(value)}.")
    pairs = enumerate(zip(value, spec, strict=True))
    return tree.unflatten_as(
        spec, tree.flatten([fit(part, child, f"{what}/{i}", **options) for i, (part, child) in pairs])
    )


def fit_array(
    value: Any,
    spec: specs.Array,
    what: str,
    *,
    leading: str = "",
    finite: bool = True,
    slack: float | None = None,
    advice: str = "Give what the spec (the space) promises, or correct the spec.",
) -> np.ndarray:
    """Returns a value as an array of its spec; refuses one that this would not say the same as.

    A cast must stay within a kind: whole numbers become others that hold them, or floats; floats become floats, and
    never whole numbers. Whole numbers must be within the spec's bounds, at which choices end; floats may leave theirs,
    as those of many simulators do, unless there is a `slack`. It costs 2 to 15 us for a small array: where each step
    counts, compare dtype and shape first, and call this for what differs.

    Args:
        value: an array, a number, or a list of numbers.
        spec: of one array.
        what: what errors call it.
        leading: what they call an axis in front, such as "step"; "" for none.
        finite: whether NaN and infinity are refused, and what is infinite in the spec's precision.
        slack: by how much floats may be beyond their bounds, for rounding; None for no limit.
        advice: what errors end with.

    Raises:
        SpecError: saying what was expected, what was found and where.
    """
    dtype, axes = spec.dtype, bool(leading)
    promised = f"{dtype.name}{list(spec.shape)}{f' at each {leading}' if leading else ''}"
    try:
        array = np.asarray(value)
    except ValueError as error:  # A list of lists of several lengths.
        raise SpecError(f"{what}: expected {promised}, found {brief(value)}. {advice}") from error
    if array.dtype != dtype and array.dtype.kind not in "biuf":
        raise SpecError(f"{what}: expected {promised}, found {brief(value)}. {advice}")
    found = f"{array.dtype.name}{list(array.shape[axes:])}"
    if array.shape[axes:] != spec.shape or array.ndim < axes:
        raise SpecError(f"{what}: expected {promised}, found {found}. {advice}")
    if array.dtype.kind == "f" and dtype.kind in "biu" and array.size:
        fraction = next(iter(array[array != np.rint(array)]), array.flat[0])
        raise SpecError(f"{what}: expected {promised}, found {found}, such as {fraction}. {advice}")
    bad, taken = _cast(array, dtype)
    if bad is None and finite and dtype.kind in "fc" and not np.isfinite(taken).all():
        bad = ~np.isfinite(taken)
    if bad is None and isinstance(spec, BoundedArray):
        if dtype.kind in "iu":
            bad = (taken < spec.minimum) | (taken > spec.maximum)
        elif slack is not None:
            bad = (taken < spec.minimum - slack) | (taken > spec.maximum + slack)
    if bad is not None and bad.any():
        raise SpecError(f"{_refusal(array, bad, spec, what, leading)} {advice}")
    return taken


def _cast(array: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray | None, np.ndarray]:
    """Returns where whole numbers are lost in a cast, None for nowhere, and the array as it is then."""
    if array.dtype == dtype:
        return None, array
    if dtype.kind not in "biu" or np.can_cast(array.dtype, dtype):
        with np.errstate(over="ignore"):  # Infinity is looked for later.
            return None, array.astype(dtype)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bad = (array < least) | (array > most)
    return (bad if bad.any() else None), array.astype(dtype)


def _refusal(array: np.ndarray, bad: np.ndarray, spec: specs.Array, what: str, leading: str) -> str:
    """Returns the error about an array with bad numbers."""
    index = np.argwhere(bad)[0].tolist()
    number, others = array[tuple(index)], int(bad.sum()) - 1
    place = f" of {leading} {index.pop(0)}" if leading else ""
    found = f"{array.dtype.name} {number}{f' at {index}' if index else ''}"
    more = f" and {others:,} more such of {array.size:,} numbers" if others else ""
    promised = f"{spec.dtype.name}{list(spec.shape)}{_bounds_in_words(_at(spec, index))}"
    return f"{what}{place}: expected {promised}, found {found}{more}."


def _at(spec: specs.Array, index: list[int]) -> specs.Array:
    """Returns the spec of one number of an array."""
    if not isinstance(spec, BoundedArray):
        return spec
    bounds = [np.broadcast_to(bound, spec.shape)[tuple(index)] for bound in (spec.minimum, spec.maximum)]
    return BoundedArray((), spec.dtype, *bounds)


def brief(value: Any) -> str:
    """Returns in a few words what was found in a value's place, in one line."""
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"{value.dtype.name}{list(value.shape)}"
    return "None" if value is None else " ".join(f"{type(value).__name__} {value!r:.60}".split())


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
