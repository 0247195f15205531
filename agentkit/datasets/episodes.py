"""Whole episodes as arrays: what data files hold, what is recorded of a policy, and what adders turn into items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import core, nests, specs
from agentkit.errors import ConfigError, SpecError
from agentkit.types import Nest

ActionSpace = Mapping[str, Any]
"""What a file says of actions, in Minari's terms: ``{"type": "Box", "low": [...], "high": [...]}``,
``{"type": "Discrete", "n": 3}``, or ``{"type": "Dict", "subspaces": {...}}`` (of a ``Tuple`` a list) of several."""

_MOST_CHOICES = 2**31 - 1  # An action is an int32.
_NARROWER = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}


class Episode(NamedTuple):
    """Holds an episode of T steps, in Minari's terms.

    Attributes:
        observations: o_0 to o_T, nest of ``[T + 1, ...]``.
        actions: a_0 to a_{T-1}, nest of ``[T, ...]``.
        rewards: r_1 to r_T, ``[T]``.
        terminations: bool ``[T]``, True at most at the last step: nothing follows, nothing is bootstrapped.
        truncations: bool ``[T]``, likewise: something would have followed. An episode that ends with neither was
            cut off, which is a truncation.
    """

    observations: Nest
    actions: Nest
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


def as_episodes(given: Any, what: str) -> list[Episode]:
    """Returns the episodes that a program gives, as a list.

    Args:
        given: a list of them.
        what: what errors call it.

    Raises:
        ConfigError: it is something else, or empty.
    """
    expected = f"{what}: expected a list of datasets.Episode, found"
    columns = "Make episodes of columns of steps with datasets.split_steps, of D4RL's with datasets.split_transitions."
    if isinstance(given, Episode):
        raise ConfigError(f"{expected} a single one. Write [episode].")
    if isinstance(given, Mapping):
        raise ConfigError(f"{expected} a dictionary of {', '.join(map(str, given))!s:.80}. {columns}")
    if not isinstance(given, Iterable):
        raise ConfigError(f"{expected} {given!r:.80}. {columns}")
    episodes = list(given)
    for episode in episodes:
        if not all(hasattr(episode, field) for field in Episode._fields):
            raise ConfigError(f"{expected} a {type(episode).__name__} in it. {columns}")
    if not episodes:
        raise ConfigError(f"{what}: expected at least 1 episode, found none.")
    return episodes


def check_episode(episode: Episode, name: str) -> None:
    """Refuses an episode whose parts do not go together.

    Args:
        episode: to look at.
        name: what errors call it.

    Raises:
        SpecError: which part, what was expected of it and what was found.
    """
    for field in ("rewards", "terminations", "truncations"):
        _check_is_array(getattr(episode, field), f"{name}, {field}")
    num_steps = np.size(episode.rewards)
    if num_steps < 1:
        raise SpecError(f"{name} has no steps; expected at least 1. Leave empty episodes out.")
    for field, leading in (("observations", num_steps + 1), ("actions", num_steps)):
        nest = getattr(episode, field)
        if not tree.flatten(nest):
            raise SpecError(f"{name}: expected {field}, found an empty {type(nest).__name__}. Leave the episode out.")
        for leaf_name, leaf in zip(specs.leaf_names(nest), tree.flatten(nest), strict=True):
            if np.ndim(leaf) < 1 or len(leaf) != leading:
                as_array = f" Lists are nests here: give np.asarray({field})." if isinstance(nest, list) else ""
                raise SpecError(
                    f"{name}: expected {leading} {field} beside {num_steps} rewards (one observation more than there "
                    f"are actions), found shape {list(np.shape(leaf))} in {leaf_name!r}.{as_array}"
                )
    for field in ("rewards", "terminations", "truncations"):
        shape = np.shape(getattr(episode, field))
        if shape != (num_steps,):
            raise SpecError(f"{name}: expected {field} of shape [{num_steps}], found {list(shape)}.")
    read_rewards(episode.rewards, f"{name}, rewards")
    flags = (read_flags(getattr(episode, field), f"{name}, {field}") for field in ("terminations", "truncations"))
    ended = np.flatnonzero(np.logical_or(*flags))
    if ended.size and ended[0] != num_steps - 1:
        raise SpecError(
            f"{name} ends at step {ended[0] + 1} and has {num_steps}; expected the end at the last step. "
            "Split it into one episode for each."
        )


def _check_is_array(column: Any, what: str) -> None:
    try:
        np.asarray(column)
    except (ValueError, TypeError) as error:
        raise SpecError(f"{what}: expected an array of one number a step, found rows of several lengths.") from error


def fit_episode(episode: Episode, spec: specs.EnvironmentSpec, actions: ActionSpace | None, name: str) -> Episode:
    """Takes an episode as values of the spec: checked as `specs.fit` does, and actions mapped onto the spec's bounds.

    Choices are counted from 0, as agentkit does everywhere; the episode has them as the environment itself counts them
    (`specs.start_of`), or actions as their action space says.

    Args:
        episode: one that `check_episode` lets pass.
        spec: of the environment.
        actions: the action space that the episode's file tells of; None where its actions have the spec's bounds.
        name: what errors call it.

    Raises:
        SpecError: structure, shape, dtype or bounds do not fit, or a number is not finite.
    """
    seen = _fit_own(episode.observations, spec.observations, f"{name}, observations", advice=_OF_ANOTHER)
    return episode._replace(
        observations=seen, actions=_fit_actions(episode.actions, spec.actions, actions, f"{name}, actions")
    )


_OF_ANOTHER = "Is the data set of this environment? If it is, leave the episode out or mend it."
_OF_OTHER_ACTIONS = (
    "Give actions in the shape and dtype that are expected, whole numbers for choices. A file of actions in other "
    "bounds says so in its action_space: datasets.write_episodes(path, episodes, {'type': 'Box', 'low': [...], 'high': "
    "[...]})."
)


def _fit_own(nest: Nest, spec: Nest, what: str, **options: Any) -> Nest:
    """Returns a nest in the environment's own terms, ``[T, ...]``, as one of `spec`."""
    own = specs.fit(nest, specs.in_own_terms(spec), what, leading="step", **options)
    return specs.from_own_terms(own, spec)


def _fit_actions(nest: Nest, spec: Nest, space: ActionSpace | None, what: str) -> Nest:
    options: dict[str, Any] = {"slack": 1e-4, "advice": _OF_OTHER_ACTIONS}  # Of a map between bounds, in 32 bits.
    if isinstance(spec, specs.DiscreteArray) and not tree.is_nested(nest) and np.shape(nest)[1:] == (1,):
        nest = np.asarray(nest)[:, 0]  # As d3rlpy has them.
    if space is None or tree.is_nested(nest) == specs.is_spec(spec):
        return _fit_own(nest, spec, what, **options)
    try:
        if not specs.is_spec(spec):
            return _fit_parts(nest, spec, space["subspaces"], what)
        start = space["low"] if np.any(specs.start_of(spec)) and space.get("type") == "Box" else space.get("start")
        if spec.dtype.kind in "iu" and start is not None:
            whole = specs.fit_array(nest, specs.Array(spec.shape, np.int64), what, leading="step", advice=_OF_ANOTHER)
            return specs.fit_array(whole - np.asarray(start), spec, what, leading="step", **options)
        if space.get("type") == "Box" and isinstance(spec, specs.BoundedArray) and spec.dtype.kind == "f":
            nest = _map_bounds(nest, spec, space, what)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{what}: the action_space {dict(space)!s:.200} is not of these actions: {error!r}.") from error
    return _fit_own(nest, spec, what, **options)


def _fit_parts(nest: Nest, spec: Nest, spaces: Any, what: str) -> Nest:
    """Returns a dictionary or tuple of actions, each part by its own space."""
    is_mapping = isinstance(spec, Mapping)
    keys = list(spec) if is_mapping else list(range(len(spec)))
    if len(nest) != len(spec) or len(spaces) != len(spec):
        raise SpecError(
            f"{what}: expected {len(spec)} parts, found {len(nest)}, and {len(spaces)} in the action_space."
        )
    found = [_fit_actions(nest[key], spec[key], spaces[key], f"{what}/{key}") for key in keys]
    return dict(zip(keys, found, strict=True)) if is_mapping else tree.unflatten_as(spec, tree.flatten(found))


def _map_bounds(actions: Nest, spec: specs.BoundedArray, space: ActionSpace, what: str) -> Nest:
    """Returns actions of a Box as those of `spec`: bounds onto bounds, linearly."""
    low, high = np.asarray(space["low"], np.float64), np.asarray(space["high"], np.float64)
    dtype = np.dtype(space.get("dtype", spec.dtype))
    if not all(specs.is_finite_bound(bound, dtype).all() for bound in (low, high)) or not np.all(low < high):
        return actions
    if np.all(low == spec.minimum) and np.all(high == spec.maximum):
        return actions
    plain = specs.Array(spec.shape, np.float64)
    fraction = (specs.fit_array(actions, plain, what, leading="step", advice=_OF_ANOTHER) - low) / (high - low)
    return spec.minimum + fraction * (np.asarray(spec.maximum, np.float64) - spec.minimum)


def in_own_terms(episodes: Iterable[Episode], spec: specs.EnvironmentSpec) -> list[Episode]:
    """Returns episodes of an adapter's steps as files have them: choices as the environment itself counts them."""
    return [
        episode._replace(
            observations=specs.to_own_terms(episode.observations, spec.observations),
            actions=specs.to_own_terms(episode.actions, spec.actions),
        )
        for episode in episodes
    ]


def describe_actions(spec: Nest) -> ActionSpace | None:
    """Describes the action space of an action spec, for a file; None for actions a file need not describe."""
    if isinstance(spec, Mapping):
        return {"type": "Dict", "subspaces": {key: describe_actions(child) for key, child in spec.items()}}
    if isinstance(spec, tuple | list):
        return {"type": "Tuple", "subspaces": [describe_actions(child) for child in spec]}
    start = specs.start_of(spec) if specs.is_spec(spec) else 0
    if isinstance(spec, specs.DiscreteArray):
        return {"type": "Discrete", "dtype": "int64", "start": start, "n": int(spec.num_values)}
    if isinstance(spec, specs.BoundedArray):
        own: Any = specs.in_own_terms(spec)
        low, high = (np.broadcast_to(bound, spec.shape).tolist() for bound in (own.minimum, own.maximum))
        return {"type": "Box", "dtype": spec.dtype.name, "shape": list(spec.shape), "low": low, "high": high}
    return None


def read_flags(column: Any, what: str) -> np.ndarray:
    """Returns a column of ends as booleans; numbers may stand for them, 0 and 1.

    Raises:
        SpecError: they are something else.
    """
    array = np.asarray(column)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise SpecError(f"{what}: expected booleans, found {array.dtype} {array.ravel()[:5].tolist()}.")
    return array.astype(bool)


def read_rewards(column: Any, what: str) -> np.ndarray:
    """Returns a column of rewards as float64 ``[N]``; one of shape ``[N, 1]`` is taken, too.

    Raises:
        SpecError: they are no finite numbers, also in single precision, in which agents learn.
    """
    array = np.asarray(column)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    advice = "Leave the episode out or mend it."
    specs.fit_array(array, specs.Array((), np.float32), what, leading="step", advice=advice)
    return array.astype(np.float64)


def infer_spec(episodes: Sequence[Episode], actions: ActionSpace | None) -> specs.EnvironmentSpec:
    """Returns the specs of the environment that episodes are of, where nobody gave an environment.

    Continuous actions are in [-1, 1], onto which bounds that `actions` tells of are mapped. Whole numbers are
    one discrete action, also in a column of shape ``[T, 1]``, of as many values as `actions` says or as the episodes
    show.

    Raises:
        SpecError: observations or actions are no numbers, or `actions` says that there are no choices, or too many.
    """
    first = episodes[0]

    def array(leaf: Any) -> specs.Array:
        leaf = np.asarray(leaf)
        return specs.Array(leaf.shape[1:], _NARROWER.get(leaf.dtype, leaf.dtype))

    for what, nest in (("observations", first.observations), ("actions", first.actions)):
        for leaf_name, leaf in zip(specs.leaf_names(nest), tree.flatten(nest), strict=True):
            if np.asarray(leaf).dtype.kind not in "biuf":
                raise SpecError(f"{what}: expected numbers, found {np.asarray(leaf).dtype} in {leaf_name!r}.")
    action = tree.map_structure(array, first.actions)
    if specs.is_spec(action) and action.dtype.kind in "iu" and action.shape in ((), (1,)):
        most = max(0, *(int(np.max(episode.actions)) for episode in episodes)) + 1
        count = find_num_choices(actions) or most
        if count > _MOST_CHOICES:
            raise SpecError(f"actions: expected at most {_MOST_CHOICES:,} choices, found action {count - 1:,}.")
        action = specs.DiscreteArray(count, dtype=np.int32, name="action")
    elif specs.is_spec(action) and action.dtype.kind == "f":
        action = specs.BoundedArray(action.shape, action.dtype, -1.0, 1.0, "action")
    scalar = specs.Array((), np.float32, "reward")
    discount = specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")
    return specs.EnvironmentSpec(tree.map_structure(array, first.observations), action, scalar, discount)


def find_num_choices(space: ActionSpace | None) -> int | None:
    """Returns how many choices a ``Discrete`` action space has; None where it does not say, or is another one.

    Raises:
        SpecError: it is no whole number above 0.
    """
    if space is None or space.get("type", "Discrete") != "Discrete" or "n" not in space:
        return None
    count = space["n"]
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or not 0 < count <= _MOST_CHOICES:
        raise SpecError(f"action_space: expected n to be the number of choices, 1 or more, found {count!r:.80}.")
    return int(count)


def add_episode(adder: core.Adder, episode: Episode, extras: Nest = ()) -> None:
    """Gives an episode to an adder, step by step, as an actor does: the discount is 0 at a termination, else 1.

    Args:
        adder: to give it to.
        episode: one that `check_episode` lets pass.
        extras: of the policy, for each step.
    """
    num_steps = len(episode.rewards)
    first = dm_env.TimeStep(dm_env.StepType.FIRST, None, None, _at(episode.observations, 0))
    adder.add_first(first)
    rewards, terminations = (np.asarray(x).tolist() for x in (episode.rewards, episode.terminations))
    for t in range(num_steps):
        timestep = dm_env.TimeStep(
            dm_env.StepType.LAST if t == num_steps - 1 else dm_env.StepType.MID,
            float(rewards[t]),
            0.0 if terminations[t] else 1.0,
            _at(episode.observations, t + 1),
        )
        adder.add(_at(episode.actions, t), timestep, extras)


def _at(nest: Nest, index: int) -> Nest:
    return nest[index] if isinstance(nest, np.ndarray) else tree.map_structure(lambda x: x[index], nest)


@final
class EpisodeRecorder(core.Adder):
    """Keeps the episodes themselves; an adder.

    Attributes:
        episodes: those that have ended.
    """

    def __init__(self, max_steps: int | None = None) -> None:
        """Makes a recorder, which cuts an episode off after `max_steps`, as truncated; None for no limit."""
        self.episodes: list[Episode] = []
        self._max_steps = max_steps
        self.reset()

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self.reset()
        self._observations.append(nests.copy_nest(timestep.observation))

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step; the policy's extras are not kept.

        Raises:
            SpecError: the reward is no scalar, or the discount another one than 1, and 0 at the end.
        """
        del extras
        reward, discount = next_timestep.reward, next_timestep.discount
        if np.ndim(reward) or np.ndim(discount) or not (discount == 1 or (discount == 0 and next_timestep.last())):
            raise SpecError(
                "Episodes are recorded with scalar rewards, and discounts of 1, or 0 at a termination; found reward "
                f"{reward!r} and discount {discount!r}. Files of episodes have no place for others."
            )
        self._actions.append(nests.copy_nest(action))
        self._rewards.append(float(reward))
        self._observations.append(nests.copy_nest(next_timestep.observation))
        if next_timestep.last() or len(self._rewards) == self._max_steps:
            ended = np.zeros((2, len(self._rewards)), bool)
            ended[0 if discount == 0 else 1, -1] = True
            rewards = np.array(self._rewards, np.float64)
            self.episodes.append(Episode(_stack(self._observations), _stack(self._actions), rewards, *ended))
            goes_on = [] if next_timestep.last() else self._observations[-1:]
            self.reset()
            self._observations += goes_on

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._observations: list[Nest] = []
        self._actions: list[Nest] = []
        self._rewards: list[float] = []

    def close(self) -> None:
        """Has nothing to free."""


def _stack(rows: Sequence[Nest]) -> Nest:
    return tree.map_structure(lambda *leaves: np.stack(leaves), *rows)


def find_reward_scale(episodes: Sequence[Episode]) -> float:
    """Returns the factor that makes returns as far apart as the longest episode has steps.

    For episodes of 1,000 steps it is what IQL's authors give D4RL's locomotion, 1,000 / (largest return - smallest)
    (Kostrikov et al. 2021). Where all returns are equal, but for the rounding of their sums, it is 1.
    """
    rewards = [np.asarray(episode.rewards, np.float64) for episode in episodes]
    returns = [float(np.sum(each)) for each in rewards]
    distance = max(returns) - min(returns)
    if not distance > 1e-6 * max(float(np.sum(np.abs(each))) for each in rewards):
        return 1.0
    return max(len(episode.rewards) for episode in episodes) / distance


def scale_rewards(episodes: Sequence[Episode], scale: float | None = None) -> list[Episode]:
    """Multiplies rewards by `scale`; by `find_reward_scale` of these episodes where it is None.

    By 1 it returns the episodes themselves.
    """
    factor = find_reward_scale(episodes) if scale is None else scale
    if factor == 1.0:
        return list(episodes)
    return [episode._replace(rewards=np.asarray(episode.rewards, np.float64) * factor) for episode in episodes]


def fit_episodes(
    episodes: Iterable[Episode], spec: specs.EnvironmentSpec, actions: ActionSpace | None
) -> list[Episode]:
    """Applies `check_episode` and `fit_episode` to each.

    Raises:
        SpecError: the first that does not fit, by its number.
        ConfigError: there is no episode, or one agent plays both sides of a game in the environment.
    """
    if specs.changes_sides(spec.discounts):
        raise ConfigError(
            "Episodes from data have discounts of 1, and 0 at a termination; in a game that one agent plays from both "
            "sides (both_sides:) they are -1. Learn it by playing, without data."
        )
    fitted = []
    for number, episode in enumerate(episodes):
        check_episode(episode, f"episode {number}")
        fitted.append(fit_episode(episode, spec, actions, f"episode {number}"))
    if not fitted:
        raise ConfigError("Expected at least 1 episode to learn from, found none.")
    return fitted
