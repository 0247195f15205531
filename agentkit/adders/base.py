"""Pieces that adders share: checks of what comes in, and the rows of sequences and episodes."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import FromStep, Layout, Select
from agentkit.types import Nest, Step

PriorityFn = Callable[[Any], float]
"""From an item's data, exactly as it will be sampled but without a batch axis (a `Transition`, or a
`Step` of ``[T, ...]`` with its padding), to the priority it is inserted with. Its input is read-only."""

Tables = str | Mapping[str, PriorityFn | None]
"""What an adder feeds: a table's name, or names with a priority function each (None: the largest priority seen)."""


def parse_tables(tables: Tables) -> tuple[tuple[str, PriorityFn | None], ...]:
    """Returns `tables` as pairs; refuses an empty set and functions that cannot be called."""
    pairs = ((tables, None),) if isinstance(tables, str) else tuple(dict(tables).items())
    if not pairs:
        raise ConfigError("An adder needs at least one table to write to, found none.")
    for name, function in pairs:
        if function is not None and not callable(function):
            raise ConfigError(f"Table {name!r}: expected a priority function or None, found {type(function).__name__}.")
    return pairs


def find_writer(writer: Writer | Replay, history: int) -> Writer:
    """Returns the writer, or one of the replay that is given in its place, with the history that an adder needs."""
    return writer.writer(history) if isinstance(writer, Replay) else writer


def check_first(timestep: dm_env.TimeStep, spec: specs.EnvironmentSpec, in_episode: bool) -> None:
    """Refuses a first time step that is none, has a wrong observation, or comes in mid-episode.

    Raises:
        SpecError: says which of these.
    """
    if in_episode:
        raise SpecError(
            "add_first was called in mid-episode. Add steps until LAST first, or call reset() to drop "
            "the unfinished episode."
        )
    if not isinstance(timestep, dm_env.TimeStep) or not timestep.first():
        raise SpecError(f"add_first expects a dm_env.TimeStep of type FIRST, found {_describe(timestep)}.")
    specs.validate(timestep.observation, spec.observations, "observation")


def check_next(timestep: dm_env.TimeStep, in_episode: bool) -> None:
    """Refuses a time step that cannot follow another one.

    Raises:
        SpecError: says why.
    """
    if not in_episode:
        raise SpecError("add was called before add_first: an episode starts with its first time step.")
    if timestep.reward is None or timestep.discount is None or timestep.first():
        raise SpecError(
            "add expects a time step of type MID or LAST with a reward and a discount, "
            f"found {_describe(timestep)}. After LAST, the next episode starts with add_first."
        )


def _describe(timestep: Any) -> str:
    if not isinstance(timestep, dm_env.TimeStep):
        return f"a {type(timestep).__name__}"
    return (
        f"a TimeStep of type {timestep.step_type!r} with reward {timestep.reward!r} and discount {timestep.discount!r}"
    )


def check_extras(extras: Nest, extras_spec: Nest) -> None:
    """Refuses extras that do not fit `extras_spec`; a SpecError names the leaf and what to do."""
    try:
        specs.validate(extras, extras_spec, "extras")
    except SpecError as error:
        raise SpecError(
            f"{error} The adder and its table's signature must be made with the extras_spec of the policy that acts."
        ) from error


def is_scalar(spec: Nest) -> bool:
    """Returns whether `spec` is one array spec of shape ``[]``."""
    return specs.is_spec(spec) and spec.shape == ()


def make_cast(spec: Nest, what: str) -> Callable[[Nest], Nest]:
    """Returns a function that checks a nest against `spec` and casts it to the spec's dtypes.

    Environments give rewards as Python floats, which would be float64; a scalar spec takes a path
    without any tree operation.
    """
    if is_scalar(spec):
        scalar_type = spec.dtype.type

        def cast_scalar(value: Nest) -> Nest:
            if isinstance(value, (str, dict, list, tuple)) or np.ndim(value) != 0:
                specs.validate(value, spec, what)  # raises, naming what was found
            return scalar_type(value)

        return cast_scalar

    def cast(value: Nest) -> Nest:
        with contextlib.suppress(TypeError, ValueError):  # validate says it better
            value = tree.map_structure(lambda s, x: np.asarray(x, s.dtype), spec, value)
        specs.validate(value, spec, what)
        return value

    return cast


def read(state: dict[str, Any], *names: str) -> list[Any]:
    """Returns the values of these names in a saved state.

    Raises:
        CheckpointError: one is missing.
    """
    missing = [name for name in names if name not in state]
    if missing:
        raise CheckpointError(
            f"The saved state of an adder lacks {missing}; it has {sorted(state)}. Was it another kind's?"
        )
    return [state[name] for name in names]


def read_list(state: dict[str, Any]) -> list[Any]:
    """Returns the values of a saved dict with keys "0", "1", ..., in this order."""
    return read(state, *(str(i) for i in range(len(state))))


def step_layout(spec: specs.EnvironmentSpec, length: int, extras_spec: Nest) -> Layout:
    """Returns the layout of items that are `Step` of ``[length, ...]``."""
    step = specs.to_arrays(
        Step(
            observation=spec.observations,
            action=spec.actions,
            reward=spec.rewards,
            discount=spec.discounts,
            start_of_episode=specs.Array((), bool, "start_of_episode"),
            extras=extras_spec,
        )
    )
    columns = [FromStep(i, Select.ALL) for i in range(len(tree.flatten(step)))]
    return Layout(step=step, data=tree.unflatten_as(step, columns), length=length)


class StepWriter:
    """Writes a stream of time steps as rows of `Step`, and creates items over the newest of them.

    It knows how a row is made, and nothing of where sequences begin and end.
    """

    def __init__(
        self,
        writer: Writer,
        spec: specs.EnvironmentSpec,
        tables: Tables,
        length: int,
        extras_spec: Nest,
    ):
        """Makes a stream of items of `length` rows."""
        self._writer = writer
        self._spec = spec
        self._tables = parse_tables(tables)
        self._length = length
        self._extras_spec = extras_spec
        self._row_spec = step_layout(spec, length, extras_spec).step
        self._cast_reward = make_cast(spec.rewards, "reward")
        self._cast_discount = make_cast(spec.discounts, "discount")
        # A final row: action, reward, discount and extras of zero.
        self._final: Step = specs.zeros(self._row_spec)
        self._observation: Nest = None
        self._is_first = False
        self._recent: collections.deque[Step] | None = None  # rows, for the priority functions alone
        if any(function is not None for _, function in self._tables):
            self._recent = collections.deque(maxlen=length)

    @property
    def in_episode(self) -> bool:
        """Returns True between the first time step and LAST."""
        return self._observation is not None

    def first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        check_first(timestep, self._spec, self.in_episode)
        self._observation = nests.copy_nest(timestep.observation)
        self._is_first = True

    def append(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest) -> int:
        """Appends the row of the observation before `next_timestep`; returns its index."""
        check_next(next_timestep, self.in_episode)
        if self._is_first:
            check_extras(extras, self._extras_spec)
        row = Step(
            self._observation,
            action,
            self._cast_reward(next_timestep.reward),
            self._cast_discount(next_timestep.discount),
            np.bool_(self._is_first),
            extras,
        )
        index = self._append(row)
        self._observation = nests.copy_nest(next_timestep.observation)
        self._is_first = False
        return index

    def append_final(self) -> int:
        """Appends the row of the episode's last observation; returns its index."""
        self._final = self._final._replace(observation=self._observation)
        self._observation = None
        return self._append(self._final)

    def append_padding(self) -> int:
        """Appends a row behind an episode's final one, which begins an episode without an action; returns its index."""
        return self._append(self._final._replace(start_of_episode=np.True_))

    def _append(self, row: Step) -> int:
        index = self._writer.append(row)
        if self._recent is not None:
            self._recent.append(nests.copy_nest(row))
        return index

    def create_items(self, start: int, stop: int) -> None:
        """Creates one item in every table over rows ``[start, stop)``, `stop - 1` the newest."""
        data = None
        for table, function in self._tables:
            priority = None
            if function is not None:
                data = self._data() if data is None else data
                priority = float(function(data))
            self._writer.create_item(table, priority, start, stop)

    def _data(self) -> Step:
        assert self._recent is not None
        return tree.map_structure(lambda *leaves: np.stack(leaves), *self._recent)

    def forget(self) -> None:
        """Ends the writer's episode: no later item refers to the rows so far."""
        self._observation = None
        if self._recent is not None:
            self._recent.clear()
        self._writer.end_episode()

    def close(self) -> None:
        """Flushes and closes the writer."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the state in mid-episode, that of the writer included."""
        return {
            "writer": self._writer.save(),
            "observation": nests.number_leaves(self._observation) if self.in_episode else None,
            "is_first": self._is_first,
            "recent": {str(i): nests.number_leaves(row) for i, row in enumerate(self._recent or ())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        writer, observation, is_first, recent = read(state, "writer", "observation", "is_first", "recent")
        if observation is not None:
            observation = nests.restore_from_numbers(observation, self._spec.observations, "observation")
        rows = [nests.restore_from_numbers(row, self._row_spec, "row") for row in read_list(recent)]
        self._writer.restore(writer)
        self._observation = observation
        self._is_first = bool(is_first)
        if self._recent is not None:
            self._recent.clear()
            self._recent.extend(rows)
