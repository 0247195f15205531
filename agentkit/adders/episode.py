"""The episode adder: one item an episode, for agents that learn from whole episodes."""

from __future__ import annotations

from typing import Any, Literal, get_args

import dm_env

from agentkit import core, specs
from agentkit.adders.base import StepWriter, Tables, read, step_layout
from agentkit.errors import ConfigError
from agentkit.replay.base import Writer
from agentkit.replay.table import Layout
from agentkit.types import Nest

TooLong = Literal["split", "error"]


class EpisodeAdder(core.Adder):
    """Writes every episode as one `Step` of ``[max_length, ...]``, padded with zeros.

    An episode of L actions is L + 1 rows; what a row holds, and how termination and truncation
    differ, is said in `SequenceAdder`. Padding rows are zeros: the rows that hold an action are those
    up to and without the final one, which is the last row whose observation is real.

    An episode of more than `max_length` rows is, by `too_long`,

    * ``"split"``: written in pieces of `max_length` rows that share no row, the last one padded. Only
      the first piece has ``start_of_episode``; a piece that does not end the episode has no final
      row, so nothing can be bootstrapped beyond its last action.
    * ``"error"``: refused with a `ConfigError` at its first row too many; nothing of it is written.

    Example, max_length 4: an episode of L = 2 actions gives ``[0 1 2 -]``; one of L = 5 actions gives
    ``[0 1 2 3] [4 5 - -]`` when split (- is a row of zeros; 2 and 5 are the final rows).

    The item is written at LAST, so `reset` in mid-episode leaves nothing (but pieces already
    split off). After an error from the writer, call `reset`.
    """

    def __init__(
        self,
        writer: Writer,
        spec: specs.EnvironmentSpec,
        *,
        tables: Tables,
        max_length: int,
        too_long: TooLong = "split",
        extras_spec: Nest = (),
    ):
        """Makes an episode adder.

        Args:
            writer: of a replay whose tables have `EpisodeAdder.layout`, with `EpisodeAdder.history`.
            spec: of the environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            max_length: rows in an item, the final one included: the longest episode's actions + 1.
            too_long: see above.
            extras_spec: nest of array specs of the extras given to `add`.

        Raises:
            ConfigError: a setting is impossible.
        """
        if max_length < 2:
            raise ConfigError(f"max_length counts the final row too and must be at least 2, found {max_length}.")
        if too_long not in get_args(TooLong):
            raise ConfigError(f"too_long must be one of {get_args(TooLong)}, found {too_long!r}.")
        self._stream = StepWriter(writer, spec, tables, max_length, extras_spec)
        self._max_length = max_length
        self._too_long = too_long
        self._start = 0  # of this piece
        self._stop = 0  # rows so far

    @staticmethod
    def layout(spec: specs.EnvironmentSpec, max_length: int, extras_spec: Nest = ()) -> Layout:
        """Returns the layout of the items, for `Table.layout`."""
        return step_layout(spec, max_length, extras_spec)

    @staticmethod
    def signature(spec: specs.EnvironmentSpec, max_length: int, extras_spec: Nest = ()) -> Nest:
        """Returns the specs of an item's data: `Step` of ``[max_length, ...]``."""
        return step_layout(spec, max_length, extras_spec).signature

    @staticmethod
    def history(max_length: int) -> int:
        """Returns the history that `Replay.writer` needs."""
        return max_length

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._stream.first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Stores one row; on LAST the final one too, and creates the item.

        Raises:
            ConfigError: the episode is too long and `too_long` is "error".
        """
        self._make_room()
        self._stop = self._stream.append(action, next_timestep, extras) + 1
        if next_timestep.last():
            self._make_room()
            self._stop = self._stream.append_final() + 1
            self._stream.create_items(self._start, self._stop)
            self.reset()

    def _make_room(self) -> None:
        """Splits a full piece off, now that one more row is to follow."""
        if self._stop - self._start < self._max_length:
            return
        if self._too_long == "error":
            raise ConfigError(
                f"An episode has more than max_length = {self._max_length} rows (its actions and the final "
                'observation). Raise max_length, limit the steps of an episode, or set too_long="split".'
            )
        self._stream.create_items(self._start, self._stop)
        self._start = self._stop

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._stream.forget()
        self._start = self._stop = 0

    def close(self) -> None:
        """Confirms everything written and frees the writer. May be called twice."""
        self._stream.close()

    def save(self) -> dict[str, Any]:
        """Returns the state, in mid-episode too (a `Saveable`), with that of the writer."""
        return {"stream": self._stream.save(), "start": self._start, "stop": self._stop}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay was restored."""
        stream, start, stop = read(state, "stream", "start", "stop")
        self._stream.restore(stream)
        self._start, self._stop = int(start), int(stop)
