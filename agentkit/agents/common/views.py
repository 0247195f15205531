"""Views: which past observations, actions and rewards a network sees, declared once and looked up by one function.

The policy looks into the steps that it remembers, the update into the rows of an item in replay: both by `show`. Time
is RLlib's and rlax's: row t holds o_t, and a_t that was taken on seeing it. So at step t the shift 0 is o_t, and -1 is
o_{t-1}, a_{t-1}, and the reward r_t that came with o_t.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.specs import EnvironmentSpec
from agentkit.types import Array, Nest
from agentkit.wrappers.observation_action_reward import OAR

_RANGE = re.compile(r"(-?\d+):(-?\d+)")


@final
@dataclasses.dataclass(frozen=True)
class View:
    """Declares one input of a model: a column, shifted in time.

    Attributes:
        column: "observation"; a part of it, such as "observation.camera"; "action"; or "reward", which needs the
            wrapper `observation_action_reward`, since a policy is only given what it observes.
        shift: of one step, -1, without an axis of time; of several, [-4, -2, -1], or of a range with both its ends,
            "-50:-1": leaves ``[len(shift), ...]``, in this order. 0 is the present, and for observations only.
        fill: what stands for steps before the episode's start: "zeros"; "first", the first there is of the episode
            (zeros while there is none); or a number, such as -1 for discrete actions, of which 0 is one.
    """

    column: str
    shift: int | Sequence[int] | str = -1
    fill: float | Literal["zeros", "first"] = "zeros"

    def __post_init__(self) -> None:
        """Refuses a view of nothing, of the future, or of what a policy cannot know."""
        if isinstance(self.shift, Iterable) and not isinstance(self.shift, str):
            object.__setattr__(self, "shift", tuple(self.shift))  # So that equal declarations are equal.
        name, *parts = self.column.split(".")
        if name not in ("observation", "action", "reward") or (parts and name != "observation") or "" in parts:
            raise ConfigError(
                "A view's column is 'observation', a part of it such as 'observation.camera', 'action' or 'reward'; "
                f"found {self.column!r}."
            )
        is_number = isinstance(self.fill, int | float) and not isinstance(self.fill, bool)
        if self.fill not in ("zeros", "first") and not (is_number and math.isfinite(float(self.fill))):
            raise ConfigError(f"A view's fill is 'zeros', 'first' or a finite number, found {self.fill!r}.")
        last = 0 if name == "observation" else -1
        if max(self.shifts) > last:
            why = "o_t is the newest it has" if last == 0 else "at step t it has yet to take a_t and to get its reward"
            raise ConfigError(
                f"A view of {self.column!r} has shifts of at most {last}, found {max(self.shifts)}: a policy cannot "
                f"look ahead, {why}. A loss has the step after in the batch's next_observation."
            )

    @property
    def shifts(self) -> tuple[int, ...]:
        """Returns the shifts, one or more."""
        if isinstance(self.shift, str):
            match = _RANGE.fullmatch(self.shift.replace(" ", ""))
            if match is None or int(match[1]) > int(match[2]):
                raise ConfigError(
                    f"A range of shifts is '-50:-1', from the oldest to the newest; found {self.shift!r}."
                )
            return tuple(range(int(match[1]), int(match[2]) + 1))
        shifts = self.shift if isinstance(self.shift, tuple) else (self.shift,)
        if not shifts or not all(isinstance(shift, int) and not isinstance(shift, bool) for shift in shifts):
            raise ConfigError(f"Shifts are whole numbers, such as -1 or [-4, -2, -1]; found {self.shift!r}.")
        return shifts


@final
@dataclasses.dataclass(frozen=True)
class Reach:
    """Holds how many rows before the present each column is looked at.

    Attributes:
        observation: for observations, and rewards with them.
        start: for where the episode starts: as far back as any.
        action: for actions; None where no view shows them.
    """

    observation: int
    start: int
    action: int | None = None


class Past(NamedTuple):
    """Holds the rows that views of T steps are taken from, oldest first.

    Attributes:
        observation: ``[reach + T, ...]``, the last T those of the steps themselves.
        action: likewise; ``()`` where no view shows actions.
        start_of_episode: bool likewise, as far back as the farthest of them.
    """

    observation: Nest
    action: Nest
    start_of_episode: Array


@final
@dataclasses.dataclass(frozen=True)
class Views:
    """Holds the views that a model sees, by name: its observation is a dictionary of them."""

    parts: tuple[tuple[str, View], ...]

    @classmethod
    def from_mapping(cls, views: Mapping[str, View]) -> Views:
        """Returns the views of a dictionary.

        Raises:
            ConfigError: it is empty, or holds something else.
        """
        if not isinstance(views, Mapping):
            raise ConfigError(
                f"views: expected a dictionary of them by name, such as {{'window': View('observation', '-50:0')}}, "
                f"found a {type(views).__name__}. Name each view."
            )
        wrong = [name for name, view in views.items() if not isinstance(view, View) or name in ("", specs.ACTION_MASK)]
        if not views or wrong:
            raise ConfigError(
                "Expected views by name, such as {'window': View('observation', '-50:0')}, found "
                f"{'nothing' if not views else f'{wrong[0]!r}: {views[wrong[0]]!r}'}."
            )
        return cls(tuple(views.items()))

    @property
    def reach(self) -> Reach:
        """Returns how far back the views look."""
        actions = [-min(view.shifts) for _, view in self.parts if view.column == "action"]
        # The reward r_t is in the row of o_t, one later than that of a_{t-1}, which it is for.
        others = [-min(view.shifts) - (view.column == "reward") for _, view in self.parts if view.column != "action"]
        start = max(-min(view.shifts) for _, view in self.parts)
        return Reach(max(others, default=0), start, max(actions) if actions else None)

    def spec(self, spec: EnvironmentSpec) -> dict[str, Nest]:
        """Returns the specs of what the model sees in an environment.

        Raises:
            ConfigError: the environment has no such column, or its dtype has no such value to fill with.
        """
        found = {name: _view_spec(name, view, spec) for name, view in self.parts}
        mask = _action_mask(spec.observations)
        return found if mask is None else {**found, specs.ACTION_MASK: mask}


def ages(start_of_episode: Array, num_steps: int) -> jax.Array:
    """Returns how many steps of its episode each of the last T rows has before it, as far as is known: int32 ``[T]``.

    Args:
        start_of_episode: bool ``[reach + T]``, oldest first.
        num_steps: T.
    """
    rows = jnp.arange(start_of_episode.shape[0])
    latest = jax.lax.cummax(jnp.where(start_of_episode, rows, -1))
    return (rows - latest)[-num_steps:]


def show(views: Views, observation: Nest, action: Nest, age: Array) -> dict[str, Nest]:
    """Returns the views at each of the last T rows: leaves ``[T, ...]`` or ``[T, len(shift), ...]``.

    Nothing is seen across the start of an episode. A mask of legal actions is the present one.

    Args:
        views: what to show.
        observation: the rows, oldest first, ``[reach + T, ...]``.
        action: likewise; ``()`` where no view shows actions.
        age: steps of its episode before each of the T, or more than the views reach back, int32 ``[T]``.
    """
    found = {name: _show(view, observation, action, age) for name, view in views.parts}
    mask = _action_mask(observation)
    return found if mask is None else {**found, specs.ACTION_MASK: mask[-age.shape[0] :]}


def _show(view: View, observation: Nest, action: Nest, age: Array) -> Nest:
    nest, offset = _column(view.column, observation, action)
    num_steps, age = age.shape[0], age[:, None]  # [T, 1]
    shifts = jnp.asarray(view.shifts)[None]  # [1, S]
    is_there = -shifts <= age  # [T, S]
    if view.fill == "first":
        shifts = jnp.maximum(shifts, -age)
        # An episode's first observation is there at once, its first action a step later.
        is_there = is_there | (age > 0) | view.column.startswith("observation")

    def look(column: Array) -> Array:
        present = column.shape[0] - num_steps + offset  # The row of the first of the T steps.
        if view.fill == "first":
            index = present + jnp.arange(num_steps)[:, None] + shifts
            values = jnp.take(column, index, axis=0, mode="clip")  # [T, S, ...]
        else:  # By slices: ONNX then needs no gather.
            slices = [column[present + s : present + s + num_steps][:, None] for s in view.shifts]
            values = jnp.concatenate(slices, axis=1)
        fill = np.asarray(0 if isinstance(view.fill, str) else view.fill, column.dtype)
        shown = jnp.where(is_there.reshape(is_there.shape + (1,) * (values.ndim - 2)), values, fill)
        return shown[:, 0] if isinstance(view.shift, int) else shown

    return jax.tree.map(look, nest)


def _column(name: str, observation: Nest, action: Nest) -> tuple[Nest, int]:
    """Returns a column (or its spec), and how many rows later than its time it stands."""
    if name == "action":
        return action, 0
    if name == "reward":
        if not isinstance(observation, OAR):
            raise ConfigError(
                "A view of rewards: a policy is given observations only. Put rewards there by the wrapper "
                "observation_action_reward (--wrapper observation_action_reward)."
            )
        return observation.reward, 1
    found = observation.observation if isinstance(observation, OAR) else observation
    for part in name.split(".")[1:]:
        names = list(found) if isinstance(found, Mapping) else list(getattr(found, "_fields", ()))
        if part not in names:
            raise ConfigError(f"A view of {name!r}: no part {part!r}; found {names or 'no parts by name'}.")
        found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    if isinstance(found, Mapping) and specs.ACTION_MASK in found:
        found = {key: value for key, value in found.items() if key != specs.ACTION_MASK}
    return found, 0


def _action_mask(observation: Nest) -> Any:
    inner = observation.observation if isinstance(observation, OAR) else observation
    return inner.get(specs.ACTION_MASK) if isinstance(inner, Mapping) else None


def _view_spec(name: str, view: View, spec: EnvironmentSpec) -> Nest:
    nest, _ = _column(view.column, spec.observations, spec.actions)
    if not tree.flatten(nest):
        raise ConfigError(f"View {name!r}: the environment's {view.column} is empty.")

    def shown(leaf: specs.Array) -> specs.Array:
        fill = 0 if isinstance(view.fill, str) else view.fill
        if leaf.dtype.kind not in "biuf" or np.asarray(fill).astype(leaf.dtype) != fill:
            raise ConfigError(f"View {name!r}: a {leaf.dtype} cannot be {fill!r}, its fill. Choose another one.")
        many = not isinstance(view.shift, int)
        shape = (len(view.shifts), *leaf.shape) if many else tuple(leaf.shape)
        if not isinstance(leaf, specs.BoundedArray):
            return specs.Array(shape, leaf.dtype, name)
        if specs.num_choices(leaf):  # A fill that is none of its values is seen as no choice at all.
            return specs.Choices(shape, leaf.dtype, leaf.maximum, name) if many else leaf
        low, high = (np.broadcast_to(bound, shape) for bound in (leaf.minimum, leaf.maximum))
        if leaf.dtype.kind == "f":  # What is filled in may lie outside; a choice that is none stays so.
            low, high = np.minimum(low, fill), np.maximum(high, fill)
        return specs.BoundedArray(shape, leaf.dtype, low, high, name)

    return tree.map_structure(shown, nest)
