"""The segment adder: what an on-policy agent learns from, written as soon as it is whole.

A `SequenceAdder` writes a row when its action is known, so a sequence that ends with the observation to bootstrap
from would come one step late, with an action that newer parameters may have chosen. And it writes row by row,
which costs more than acting where many environments step together. Here N environments fill their rows in one
array a leaf, and each segment goes to replay in one piece (decision 26).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import core, specs
from agentkit.adders.base import (
    Tables,
    check_extras,
    check_first,
    check_next,
    find_writer,
    make_cast,
    parse_tables,
    read,
    read_list,
    step_layout,
)
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import Layout, row_layout
from agentkit.types import FIRST, LAST, Nest, Step


class BatchedSegmentAdder(core.Adder):
    """Writes the steps of N environments as `Step` of ``[length + 1, ...]``, N items at a time.

    Row t of the first `length` rows holds o_t, the action a_t, and the reward and discount that it led to;
    the row behind them holds only the observation that followed, to bootstrap from. It is the next segment's
    first row, too, so that no step is lost or written twice, and it is there at once: N items are written
    before the next action is chosen. A row is written at each call of `add`, in every environment:

    * An episode's final observation has a row of its own, with action, reward, discount and extras of zero,
      and the next episode follows. The call after LAST, which starts that, has room for it. So all N
      segments are whole at the same call, however many episodes end in them.
    * ``start_of_episode`` says which rows these are: those before an episode's first (see
      `agentkit.types.has_action`).

    Termination and truncation: the last action's row has discount 0 on termination and 1 on truncation, where
    the value of the next row's observation counts.

    Example, length 3, N = 2; episodes of rows 0 1 2 (2 the final one), then A B C D:

        environment 0   [0 1 2|A] [A B C|D]
        environment 1   [A B C|D] [D 0 1|2]      the row behind | is for its observation only

    `reset` drops the unfinished segments. After an error from the writer, call `reset`.
    """

    def __init__(
        self, writer: Writer | Replay, spec: specs.EnvironmentSpec, *, tables: Tables, length: int, num_envs: int = 1,
        extras_spec: Nest = (), history: int = 0,
    ):  # fmt: skip
        """Makes a `BatchedSegmentAdder`.

        Args:
            writer: of a replay whose tables have `segment_layout`, with a history of 1; or the replay, which is asked
                for one.
            spec: of one environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            length: rows in a segment, T; the items have one more.
            num_envs: N.
            extras_spec: nest of array specs of one environment's extras.
            history: rows before a segment's first that its item holds, too, in front: those that its environment
                wrote before, and zeros where it had not begun.

        Raises:
            ConfigError: a setting is impossible.
        """
        if length < 1 or num_envs < 1 or history < 0:
            raise ConfigError(
                f"Expected length >= 1, num_envs >= 1 and history >= 0, found {length}, {num_envs} and {history}."
            )
        self._writer = find_writer(writer, 1)
        self._tables = parse_tables(tables)
        self._length = length
        self._num_envs = num_envs
        self._extras_spec = extras_spec
        self._history = history
        item = segment_layout(spec, length, extras_spec, history).signature
        self._segments: Step = specs.zeros(specs.add_leading(item, num_envs))  # [N, history + T + 1, ...]
        self._observations = tree.flatten(self._segments.observation)
        self._outcomes = tree.flatten(_outcome(self._segments))
        parts = {"actions": spec.actions, "rewards": spec.rewards, "discounts": spec.discounts}
        self._checks = [
            make_cast(specs.add_leading(part, num_envs), f"{name} of the batch")
            for name, part in {**parts, "observations": spec.observations}.items()
        ]
        self._row = -1  # The row whose observation is there and whose action is not; -1 before the first.
        self._was_last = np.zeros(num_envs, bool)

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode in every environment, when the actor begins."""
        if self._row >= 0:
            raise SpecError(
                "add_first was called with rows of unfinished segments. Later episodes of a batch begin in `add`, "
                "with step type FIRST; call reset() to drop the rows."
            )
        self._checks[-1](timestep.observation)
        self._extend(timestep.observation, np.full(self._num_envs, FIRST))

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step of all environments, leaves ``[N, ...]``; the segments, too, if they are whole now.

        Where an environment's step type is FIRST, it was reset: its action and its extras are ignored.
        """
        row = self._row
        if row < 0:
            raise SpecError("add was called before add_first: an episode starts with its first time step.")
        if row == 0:
            self._check(action, next_timestep, extras)
        given = tree.flatten((action, next_timestep.reward, next_timestep.discount, extras))
        at = self._history + row
        for column, leaf in zip(self._outcomes, given, strict=True):
            column[:, at] = leaf
        if self._was_last.any():
            for column in self._outcomes:
                column[self._was_last, at] = 0
        self._extend(next_timestep.observation, np.asarray(next_timestep.step_type))

    def _check(self, action: Nest, timestep: dm_env.TimeStep, extras: Nest) -> None:
        """Checks the shapes, once a segment: numpy would stretch a wrong one without a word."""
        given = (action, timestep.reward, timestep.discount, timestep.observation)
        for check, value in zip(self._checks, given, strict=True):
            check(value)
        check_extras(extras, specs.add_leading(self._extras_spec, self._num_envs))

    def _extend(self, observation: Nest, step_type: np.ndarray) -> None:
        """Puts the observations into the next row, and writes the segments if that is the one behind them."""
        self._row = self._row + 1
        at = self._history + self._row
        for column, leaf in zip(self._observations, tree.flatten(observation), strict=True):
            column[:, at] = leaf
        self._segments.start_of_episode[:, at] = step_type == FIRST
        self._was_last = step_type == LAST
        if self._row == self._length:
            self._write()

    def _write(self) -> None:
        for i in range(self._num_envs):
            segment = tree.map_structure(lambda column: column[i], self._segments)  # noqa: B023  # Called at once.
            index = self._writer.append(segment)
            for table, function in self._tables:
                priority = None if function is None else float(function(segment))
                self._writer.create_item(table, priority, index, index + 1)
        self._writer.flush()  # Learning from them may be due before the next step.
        self._writer.end_episode()
        if self._history:
            for column in tree.flatten(self._segments):
                column[:, : self._history] = column[:, self._length : self._length + self._history].copy()
        for column in (*self._observations, self._segments.start_of_episode):
            column[:, self._history] = column[:, self._history + self._length]
        self._row = 0

    def end_episode(self) -> None:
        """Gives the final observation of every environment its row, now and not at the next call."""
        at = self._history + self._row
        for column in self._outcomes:
            column[:, at] = 0
        latest = tree.map_structure(lambda column: column[:, at], self._segments.observation)
        self._extend(latest, np.full(self._num_envs, FIRST))

    def begin_episode(self, observation: Nest) -> None:
        """Takes, after `end_episode`, the first observations of the next episodes, leaves ``[N, ...]``."""
        for column, leaf in zip(self._observations, tree.flatten(observation), strict=True):
            column[:, self._history + self._row] = leaf

    def reset(self) -> None:
        """Drops the unfinished segments."""
        self._row = -1
        self._was_last = np.zeros(self._num_envs, bool)
        for column in tree.flatten(self._segments):
            column[:, : self._history] = 0
        self._writer.end_episode()

    def close(self) -> None:
        """Flushes and closes the writer; unfinished segments are dropped."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the unfinished segments (a `Saveable`), which the writer does not hold."""
        num_rows = self._history + self._row + 1
        rows = [column[:, :num_rows].copy() for column in tree.flatten(self._segments)]
        return {"row": self._row, "was_last": self._was_last.copy(), "rows": {str(i): x for i, x in enumerate(rows)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        row, was_last, rows = read(state, "row", "was_last", "rows")
        columns, found = tree.flatten(self._segments), read_list(rows)
        for column, saved in zip(columns, found, strict=False):
            expected = (self._num_envs, self._history + row + 1, *column.shape[2:])
            if len(found) != len(columns) or saved.shape != expected or saved.dtype != column.dtype:
                raise CheckpointError(
                    f"The saved segments do not fit: expected {column.dtype}{list(expected)}, found {saved.dtype}"
                    f"{list(saved.shape)}. Resume with the agent and num_envs that they were saved with."
                )
        if row >= self._length:
            raise CheckpointError(f"The saved segments have {row} rows and more, these {self._length}.")
        for column, saved in zip(columns, found, strict=True):
            column[:, : self._history + row + 1] = saved
        self._row, self._was_last = int(row), np.array(was_last)


class SegmentAdder(core.Adder):
    """Serves one environment as `BatchedSegmentAdder` serves N: one item at a time, and nothing has a leading ``[N]``.

    An episode's final row is there as soon as the episode ends.
    """

    def __init__(
        self,
        writer: Writer | Replay,
        spec: specs.EnvironmentSpec,
        *,
        tables: Tables,
        length: int,
        extras_spec: Nest = (),
        history: int = 0,
    ):
        """As `BatchedSegmentAdder`."""
        self._batch = BatchedSegmentAdder(
            writer, spec, tables=tables, length=length, extras_spec=extras_spec, history=history
        )
        self._spec = spec
        self._started = False
        self._in_episode = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        check_first(timestep, self._spec, self._in_episode)
        if self._started:
            self._batch.begin_episode(_batch_of_one(timestep.observation))
        else:
            self._batch.add_first(timestep._replace(observation=_batch_of_one(timestep.observation)))
        self._started = self._in_episode = True

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step, and the segment if it is whole now."""
        check_next(next_timestep, self._in_episode)
        step_type, reward, discount, observation = next_timestep
        batched = dm_env.TimeStep(np.array([step_type]), *map(_batch_of_one, (reward, discount, observation)))
        self._batch.add(_batch_of_one(action), batched, _batch_of_one(extras))
        if next_timestep.last():
            self._batch.end_episode()
            self._in_episode = False

    def reset(self) -> None:
        """Drops the unfinished segment, earlier episodes in it included."""
        self._batch.reset()
        self._started = self._in_episode = False

    def close(self) -> None:
        """Flushes and closes the writer; an unfinished segment is dropped."""
        self._batch.close()

    def save(self) -> dict[str, Any]:
        """Returns the unfinished segment (a `Saveable`)."""
        return {"batch": self._batch.save(), "started": self._started, "in_episode": self._in_episode}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        batch, started, in_episode = read(state, "batch", "started", "in_episode")
        self._batch.restore(batch)
        self._started, self._in_episode = bool(started), bool(in_episode)


def segment_layout(spec: specs.EnvironmentSpec, length: int, extras_spec: Nest = (), history: int = 0) -> Layout:
    """Returns the layout of items for segments of `length` rows and `history` before, for `Table.layout`."""
    segment = step_layout(spec, history + length + 1, extras_spec).signature
    return dataclasses.replace(row_layout(segment), length=1)


def _outcome(step: Step) -> tuple[Nest, ...]:
    return step.action, step.reward, step.discount, step.extras


def _batch_of_one(nest: Nest) -> Nest:
    if isinstance(nest, np.ndarray | np.generic | float | int):
        return np.asarray(nest)[None]
    if isinstance(nest, tuple):  # By hand: dm-tree takes 11 us of a step of PPO, and this 2.
        parts = map(_batch_of_one, nest)
        return nest._make(parts) if hasattr(nest, "_make") else tuple(parts)
    return tree.map_structure(lambda x: np.asarray(x)[None], nest)
