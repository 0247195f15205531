"""The episode adder: one item an episode, for agents that learn from whole episodes."""

from __future__ import annotations

from typing import Any, Literal, get_args

import dm_env
import numpy as np
import tree

from agentkit import core, nests, specs
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
)
from agentkit.adders.segment import segment_layout
from agentkit.errors import CheckpointError, ConfigError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import Layout
from agentkit.types import Nest, Step

TooLong = Literal["error", "split"]


class EpisodeAdder(core.Adder):
    """Writes every episode as a `Step` of ``[length + 1, ...]`` when it ends (RLlib's complete_episodes).

    The rows of an episode of L steps are those of `SegmentAdder`: L rows with an action, and one with the final
    observation only. The rows behind these are padding: they repeat the final observation, with action, reward,
    discount and extras of zero, and with ``start_of_episode``. So `agentkit.types.has_action` marks the rows with an
    action, and what learns from segments learns from these, too; `agentkit.types.has_observation` marks the rows that
    are no padding. Every item takes the room of `length` steps in replay.

    An episode of more than `length` steps is, by `too_long`,

    * ``"error"``: refused with a `ConfigError` at its first step too many; nothing of it is written.
    * ``"split"``: written in pieces of `length` steps, as segments are: the observation that follows a piece is its
      last row, and the next one's first. Only the first piece begins with ``start_of_episode``.

    Example, length 3; an episode of L = 2 steps, and one of L = 5 that is split (2 and 5 are the final rows):

        observation        0 1 2|2     0 1 2|3   3 4 5|5
        start_of_episode   1 0 0|1     1 0 0|0   0 0 0|1

    `reset` drops the unfinished episode, but not the pieces that were split off. After an error from the writer, call
    `reset`.
    """

    def __init__(
        self,
        writer: Writer | Replay,
        spec: specs.EnvironmentSpec,
        *,
        tables: Tables,
        length: int,
        too_long: TooLong = "error",
        extras_spec: Nest = (),
    ):
        """Makes an `EpisodeAdder`.

        Args:
            writer: with `EpisodeAdder.history`, or the replay, which is asked for one; its tables have
                `EpisodeAdder.layout`.
            spec: of the environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            length: steps of the longest episode, T; items have one row more.
            too_long: see above.
            extras_spec: nest of array specs of the extras given to `add`.

        Raises:
            ConfigError: a setting is impossible.
        """
        if length < 1:
            raise ConfigError(f"Expected length >= 1, found {length}.")
        if too_long not in get_args(TooLong):
            raise ConfigError(f"too_long must be one of {get_args(TooLong)}, found {too_long!r}.")
        self._writer = find_writer(writer, self.history())
        self._spec = spec
        self._tables = parse_tables(tables)
        self._length = length
        self._too_long = too_long
        self._extras_spec = extras_spec
        self._rows: Step = specs.zeros(self.layout(spec, length, extras_spec).signature)  # [T + 1, ...]
        self._observations = tree.flatten(self._rows.observation)
        outcomes = (self._rows.action, self._rows.reward, self._rows.discount, self._rows.extras)
        self._outcomes = tree.flatten(outcomes)
        parts = {"action": spec.actions, "reward": spec.rewards, "discount": spec.discounts}
        self._casts = [make_cast(part, name) for name, part in {**parts, "observation": spec.observations}.items()]
        self._row = -1  # The row whose observation is there and whose action is not; -1 between episodes.

    @staticmethod
    def layout(spec: specs.EnvironmentSpec, length: int, extras_spec: Nest = ()) -> Layout:
        """Returns the layout of the items, for `Table.layout`; its `signature` is a `Step` of ``[length + 1, ...]``."""
        return segment_layout(spec, length, extras_spec)

    @staticmethod
    def history() -> int:
        """Returns the history that `Replay.writer` needs: an episode is written in one piece."""
        return 1

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        check_first(timestep, self._spec, self._row >= 0)
        self._rows.start_of_episode[0] = True
        self._row = 0
        self._observe(timestep.observation)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step; on LAST writes the episode.

        Raises:
            ConfigError: the episode has more than `length` steps, and `too_long` is "error".
        """
        check_next(next_timestep, self._row >= 0)
        if self._row == self._length:
            self._split()
        if self._row == 0:
            check_extras(extras, self._extras_spec)
            self._casts[-1](next_timestep.observation)
        given = [
            cast(value)
            for cast, value in zip(self._casts, (action, next_timestep.reward, next_timestep.discount), strict=False)
        ]
        for column, leaf in zip(self._outcomes, tree.flatten((*given, extras)), strict=True):
            column[self._row] = leaf
        self._row += 1
        self._observe(next_timestep.observation)
        if next_timestep.last():
            self._write()
            self._row = -1

    def _observe(self, observation: Nest) -> None:
        for column, leaf in zip(self._observations, tree.flatten(observation), strict=True):
            column[self._row] = leaf

    def _split(self) -> None:
        """Writes the rows so far as a piece, now that one more step is to follow."""
        if self._too_long == "error":
            raise ConfigError(
                f"An episode has more than {self._length} steps, which there is no room for. Raise length (an agent's "
                'segment_length), or end episodes sooner: --wrapper "step_limit(max_steps=...)". An EpisodeAdder of '
                'your own may split it: too_long="split".'
            )
        self._write()
        for column in self._observations:
            column[0] = column[self._length]
        self._rows.start_of_episode[0] = False
        self._row = 0

    def _write(self) -> None:
        last = self._row
        for column in self._observations:
            column[last + 1 :] = column[last]
        for column in self._outcomes:
            column[last:] = 0
        self._rows.start_of_episode[1:] = np.arange(1, self._length + 1) > last
        index = self._writer.append(self._rows)
        for table, function in self._tables:
            priority = None if function is None else float(function(nests.copy_nest(self._rows)))
            self._writer.create_item(table, priority, index, index + 1)
        self._writer.flush()  # Learning from it may be due before the next step.
        self._writer.end_episode()

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._row = -1
        self._writer.end_episode()

    def close(self) -> None:
        """Flushes and closes the writer; an unfinished episode is dropped. May be called twice."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the unfinished episode (a `Saveable`), which the writer does not hold."""
        rows = [column[: self._row + 1].copy() for column in tree.flatten(self._rows)]
        return {"row": self._row, "rows": {str(i): x for i, x in enumerate(rows)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        row, rows = read(state, "row", "rows")
        columns, found = tree.flatten(self._rows), read_list(rows)
        expected = [(column.dtype, (int(row) + 1, *column.shape[1:])) for column in columns]
        if row > self._length or [(leaf.dtype, leaf.shape) for leaf in found] != expected:
            raise CheckpointError(
                f"The saved episode has {row} steps of other columns, or more than {self._length}. Resume with the "
                "agent that it was saved with."
            )
        for column, saved in zip(columns, found, strict=True):
            column[: row + 1] = saved
        self._row = int(row)
