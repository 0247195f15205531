"""Tables, steps and helpers that the cases of the replay contract share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentkit import errors, specs
from agentkit.replay.base import Replay, Writer
from agentkit.replay.table import (
    FromInline,
    FromStep,
    Layout,
    Select,
    Table,
)

CHI_SQUARE_LIMIT_9 = 42.0
"""A chi-square statistic of 9 degrees of freedom exceeds this once in about 300,000 runs."""

SHORT = 0.3
"""Seconds to wait for what must not come."""

LONG = 20.0
"""Seconds to wait for what must come."""


class Pair(NamedTuple):
    """Holds the data of `pair_layout`: leaves ``[B, ...]`` when sampled."""

    first: Any
    action: Any
    value: Any
    last: Any


def pair_layout() -> Layout:
    """Describes items of any number of steps: first and last observation, first action, an inline value."""
    return Layout(
        step={"observation": specs.Array((2,), np.float32), "action": specs.Array((), np.int32)},
        data=Pair(
            first=FromStep(1, Select.FIRST),
            action=FromStep(0, Select.FIRST),
            value=FromInline(0),
            last=FromStep(1, Select.LAST),
        ),
        inline=specs.Array((), np.float32, "value"),
    )


def sequence_layout(length: int) -> Layout:
    """Describes items of `length` steps of the same structure as `pair_layout`'s."""
    return Layout(
        step=pair_layout().step,
        data={"action": FromStep(0, Select.ALL), "observation": FromStep(1, Select.ALL)},
        length=length,
    )


def pair_table(name: str = "pairs", max_size: int = 100, **kwargs: Any) -> Table:
    """Makes a table of `pair_layout` items; keywords are `Table`'s."""
    return Table(name, pair_layout(), max_size, **kwargs)


def make_step(number: int) -> dict[str, Any]:
    """Makes a step that shows its number: action ``[]`` and observation ``[2]``."""
    return {
        "observation": np.array([number, -number], np.float32),
        "action": np.int32(number),
    }


def write_pairs(
    writer: Writer, table: str, numbers: Sequence[int], priorities: Sequence[float] | np.ndarray = ()
) -> None:
    """Writes one single-step item per number (its step and value are the number) and flushes."""
    for i, number in enumerate(numbers):
        index = writer.append(make_step(number))
        priority = float(priorities[i]) if len(priorities) else 1.0
        writer.create_item(table, priority, index, index + 1, inline=np.float32(number))
    writer.flush()


class DrawnItem(NamedTuple):
    """Holds an item that `draw` returned: its key, and the fields of `SampleInfo`."""

    key: np.uint64
    probability: np.float64
    table_size: np.int64
    priority: np.float64
    times_sampled: np.int32


def draw(replay: Replay, table: str, count: int, batch_size: int = 1) -> list[tuple[int, DrawnItem]]:
    """Draws `count` items with a new sampler: (number, info of one item) of each, in order."""
    sampler = replay.sampler(table, batch_size, timeout=LONG)
    drawn: list[tuple[int, DrawnItem]] = []
    try:
        while len(drawn) < count:
            keys, sample = next(sampler)
            for i in range(batch_size):
                info = DrawnItem(*(x[i] for x in (keys, *sample.info)))
                drawn.append((int(sample.data.action[i]), info))
    finally:
        sampler.close()
    return drawn


def numbers(drawn: Sequence[tuple[int, Any]]) -> list[int]:
    """Returns the numbers of the steps that `draw` returned."""
    return [number for number, _ in drawn]


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns Pearson's statistic of observed `counts` ``[K]`` against `probabilities` ``[K]``."""
    expected = counts.sum() * np.asarray(probabilities, np.float64)
    return float(((counts - expected) ** 2 / expected).sum())


def wait_until(condition: Callable[[], bool]) -> bool:
    """Polls until `condition` holds or `LONG` seconds have passed; says whether it does."""
    deadline = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class ReplayCases:
    """Supplies the needs of every group of cases; `agentkit.testing.replay.ReplayContract` joins the groups.

    Attributes:
        resumable: what the backend's `Replay.resumable` must be.
        prefetches: True where a sampler draws ahead of what it was asked for, so that `num_sampled`
            may exceed, and a rate limit may have let through, what the caller received.
    """

    resumable = False
    prefetches = False

    def make_replay(self, tables: Sequence[Table], **kwargs: Any) -> Replay:
        """Makes a new replay of these tables; keywords are those every backend takes (`default_timeout`)."""
        raise NotImplementedError

    @contextlib.contextmanager
    def opened(self, *tables: Table, history: int = 1, timeout: float = LONG) -> Iterator[tuple[Replay, Writer]]:
        """Opens a replay and a writer on it, and closes both in the right order."""
        with self.make_replay(list(tables), default_timeout=timeout) as replay:
            writer = replay.writer(history, timeout=timeout)
            yield replay, writer
            # A writer with items that a rate limit holds back cannot flush; the replay goes anyway.
            with contextlib.suppress(errors.ReplayTimeoutError):
                writer.close()
