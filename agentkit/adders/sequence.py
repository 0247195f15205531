"""The sequence adder: overlapping sequences of steps, for recurrent and on-policy agents."""

from __future__ import annotations

from typing import Any, Literal, get_args

import dm_env

from agentkit import core, specs
from agentkit.adders.base import StepWriter, Tables, find_writer, read, step_layout
from agentkit.errors import ConfigError
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import Layout
from agentkit.types import Nest

EndOfEpisode = Literal["pad", "truncate", "overlap", "continue"]


def check_period(length: int, period: int) -> None:
    """Refuses sequences that would leave out rows between them.

    Args:
        length: rows in a sequence.
        period: rows from the start of one sequence to the next.

    Raises:
        ConfigError: there would be such rows, or none in a sequence.
    """
    if length < 1 or not 1 <= period <= length:
        raise ConfigError(
            f"Expected length >= 1 and 1 <= period <= length (a longer period would lose steps), "
            f"found length {length} and period {period}."
        )


class SequenceAdder(core.Adder):
    """Writes `Step` sequences of ``[length, ...]``, a new one starting every `period` rows.

    An episode of L actions is L + 1 rows. Row t holds o_t, the action a_t, the reward r_{t+1} and
    discount d_{t+1} that a_t led to, ``start_of_episode`` (t == 0) and the policy's extras. The
    final row L holds the last observation with action, reward, discount and extras of zero. Rewards
    and discounts are the environment's own, cast to their specs' dtypes; a loss applies gamma.

    Termination and truncation: the last *action's* row L - 1 has discount 0 on termination and the
    environment's (1) on truncation. There the value of row L's observation is bootstrapped from;
    the zero discount of row L itself stops anything beyond it.

    Sequences cover the rows ``[k period, k period + length)`` of an episode; neighbours share
    ``length - period`` rows. An item is written as soon as its last row is there. At the end of an
    episode some rows may be in no sequence yet. Then `end_of_episode` says what happens:

    * ``"pad"``: the next sequence is written, with padding behind the final row: rows that repeat it, and have
      ``start_of_episode``, as those of `EpisodeAdder`. So `agentkit.types.has_action` marks the rows with an action.
    * ``"truncate"``: they are not written.
    * ``"overlap"``: a sequence of the *last* `length` rows is written, which shares more rows than
      usual with the one before; an episode of fewer rows is padded.
    * ``"continue"``: sequences run on into the next episode, whose first row has
      ``start_of_episode``. Nothing is padded or lost, and an item may hold several episodes.

    Example, length 3 and period 2; an episode of L = 3 actions, so rows 0 1 2 3 (row 3 the final
    one), then an episode of rows A B C D:

        pad        [0 1 2] [2 3 -]  [A B C] [C D -]      - is padding
        truncate   [0 1 2]          [A B C]
        overlap    [0 1 2] [1 2 3]  [A B C] [B C D]
        continue   [0 1 2] [2 3 A]  [A B C]              C D wait for a third episode

    `reset` drops the unfinished episode; with ``"continue"`` also the rows before it that wait.
    After an error from the writer, call `reset`.
    """

    def __init__(
        self,
        writer: Writer | Replay,
        spec: specs.EnvironmentSpec,
        *,
        tables: Tables,
        length: int,
        period: int,
        end_of_episode: EndOfEpisode = "pad",
        extras_spec: Nest = (),
    ):
        """Makes a sequence adder.

        Args:
            writer: with `SequenceAdder.history`, or the replay, which is asked for one; its tables have
                `SequenceAdder.layout`.
            spec: of the environment.
            tables: to feed; see `agentkit.adders.base.Tables`.
            length: rows in a sequence, T.
            period: rows from the start of one sequence to the next, 1 to `length`.
            end_of_episode: see above.
            extras_spec: nest of array specs of the extras given to `add`.

        Raises:
            ConfigError: a setting is impossible.
        """
        check_period(length, period)
        if end_of_episode not in get_args(EndOfEpisode):
            raise ConfigError(f"end_of_episode must be one of {get_args(EndOfEpisode)}, found {end_of_episode!r}.")
        self._stream = StepWriter(find_writer(writer, self.history(length)), spec, tables, length, extras_spec)
        self._length = length
        self._period = period
        self._end_of_episode = end_of_episode
        self._start = 0  # where the next sequence starts
        self._covered = 0  # rows before this are in a sequence

    @staticmethod
    def layout(spec: specs.EnvironmentSpec, length: int, extras_spec: Nest = ()) -> Layout:
        """Returns the layout of the items, for `Table.layout`; its `signature` is a `Step` of ``[length, ...]``."""
        return step_layout(spec, length, extras_spec)

    @staticmethod
    def history(length: int) -> int:
        """Returns the history that `Replay.writer` needs."""
        return length

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode; its first observation is written with the first action."""
        self._stream.first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Writes one row (on LAST the final one too) and the sequences that are now complete."""
        self._extend(self._stream.append(action, next_timestep, extras))
        if next_timestep.last():
            last = self._stream.append_final()
            self._extend(last)
            if self._end_of_episode != "continue":
                self._write_tail(stop=last + 1)
                self.reset()

    def _extend(self, index: int) -> None:
        if index + 1 == self._start + self._length:
            self._stream.create_items(self._start, index + 1)
            self._covered = index + 1
            self._start += self._period

    def _write_tail(self, stop: int) -> None:
        if self._covered == stop or self._end_of_episode == "truncate":
            return
        start = max(0, stop - self._length) if self._end_of_episode == "overlap" else self._start
        while stop - start < self._length:
            stop = self._stream.append_padding() + 1
        self._stream.create_items(start, stop)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._stream.forget()
        self._start = self._covered = 0

    def close(self) -> None:
        """Confirms everything written and frees the writer. May be called twice."""
        self._stream.close()

    def save(self) -> dict[str, Any]:
        """Returns the state, in mid-episode too (a `Saveable`), with that of the writer."""
        return {"stream": self._stream.save(), "start": self._start, "covered": self._covered}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay was restored."""
        stream, start, covered = read(state, "stream", "start", "covered")
        self._stream.restore(stream)
        self._start, self._covered = int(start), int(covered)
