"""The postprocessing of segments: a function of yours between the steps of a segment and replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
import tree

from agentkit import nests, specs
from agentkit.adders import base
from agentkit.adders.columns import with_columns
from agentkit.adders.postprocessing import Postprocess, Trajectory, check_finite, check_lengths
from agentkit.errors import SpecError
from agentkit.replay.base import Writer
from agentkit.types import Nest, Step


@final
class PostprocessingWriter(Writer):
    """Shows the steps of each segment to a function, and writes the segment with what that returns.

    A segment of T rows may hold the end of an episode, whole ones, and the beginning of another: the function is called
    for each of them apart, with a `Trajectory` of its steps in the segment. It returns as many steps.
    """

    def __init__(
        self,
        writer: Writer,
        spec: specs.EnvironmentSpec,
        postprocess: Postprocess,
        extras_spec: Nest = (),
        columns: Mapping[str, specs.Array] | None = None,
    ):
        """Makes a writer of segments, as a `SegmentAdder` or `BatchedSegmentAdder` writes them.

        Args:
            writer: of replay; it is closed with this.
            spec: of one environment.
            postprocess: see `Postprocess`. It gets arrays of its own, which it may change.
            extras_spec: nest of array specs of the extras in the segments that are given.
            columns: specs of those that `postprocess` adds to them, by name.
        """
        self._writer = writer
        self._postprocess = postprocess
        self._columns = dict(columns or {})
        extras = with_columns(extras_spec, self._columns)
        self._spec = Trajectory(spec.observations, spec.actions, spec.rewards, spec.discounts, extras)

    def append(self, step: Step) -> int:
        """Stores a segment, leaves ``[T + 1, ...]``, as the function has changed it."""
        num_rows = len(step.start_of_episode)
        zeros = {name: np.zeros((num_rows, *spec.shape), spec.dtype) for name, spec in self._columns.items()}
        stored = nests.copy_nest(step._replace(extras=with_columns(step.extras, zeros)))
        for first, end in _pieces(step.start_of_episode):
            rows = tree.map_structure(lambda leaf: leaf[first:end].copy(), step)  # noqa: B023  # Called at once.
            observation = tree.map_structure(lambda leaf: leaf[first : end + 1].copy(), step.observation)  # noqa: B023
            piece = Trajectory(observation, rows.action, rows.reward, rows.discount, rows.extras)
            found = self._check(self._postprocess(piece), end - first)
            check_finite(found, step)
            tree.map_structure(_set_rows(first, end + 1), stored.observation, found.observation)
            outcomes = stored.action, stored.reward, stored.discount, stored.extras
            tree.map_structure(_set_rows(first, end), outcomes, tuple(found[1:]))
        return self._writer.append(stored)

    def _check(self, found: Any, length: int) -> Trajectory:
        """Returns what the function returned, as arrays of the spec."""
        if found is None or (isinstance(found, Trajectory) and _length(found) != length):
            what = "None" if found is None else f"{_length(found)} steps"
            raise SpecError(
                f"postprocess returned {what} for {length} steps of a segment. Expected as many, since segments follow "
                'each other. To leave out steps or episodes, set batch_mode="complete_episodes".'
            )
        check_lengths(found, self._spec)
        parts = [
            base.make_cast(specs.add_leading(part, length + (name == "observation")), name)(value)
            for (name, part), value in zip(self._spec._asdict().items(), found, strict=True)
        ]
        return Trajectory(*parts)

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """Creates an item of segments; see `Writer.create_item`."""
        return self._writer.create_item(table, priority, start, stop, inline, padding)

    def end_episode(self) -> None:
        """Forgets the segments so far."""
        self._writer.end_episode()

    def flush(self) -> None:
        """Waits until replay has them."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the writer."""
        self._writer.close()

    def save(self) -> dict[str, Any]:
        """Returns the writer's state."""
        return self._writer.save()

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._writer.restore(state)


def _pieces(start_of_episode: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields the first and the last row of each episode's part of a segment: the last has an observation only."""
    first = 0
    for end in [*np.flatnonzero(start_of_episode[1:]), len(start_of_episode) - 1]:
        if end > first:
            yield first, int(end)
        first = end + 1


def _length(trajectory: Trajectory) -> int:
    rewards = tree.flatten(trajectory.reward)
    return len(rewards[0]) if rewards and np.ndim(rewards[0]) else 0


def _set_rows(first: int, end: int) -> Any:
    def set_rows(column: np.ndarray, rows: np.ndarray) -> None:
        column[first:end] = rows

    return set_rows
