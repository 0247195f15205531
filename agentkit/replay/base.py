"""The interface of replay: what adders write to and datasets read from, whatever the backend."""

from __future__ import annotations

import abc
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.errors import ConfigError, SpecError, unknown_name
from agentkit.replay.table import Select, Table
from agentkit.types import DrawnBatch, Nest, TableInfo

FIRST_PRIORITY = 1.0
"""What new items without a priority get, as long as no greater one was seen."""


class Writer(abc.ABC):
    """Appends the steps of one stream and creates items that refer to them. Not thread-safe.

    Every table of one replay that one writer feeds has the same step structure.
    """

    @abc.abstractmethod
    def append(self, step: Nest) -> int:
        """Stores one step, a nest of arrays; returns its index within the episode, from 0.

        Raises:
            SpecError: naming the leaf, if structure, shape or dtype differ from the layout's; the
                writer is then as it was before.
        """

    @abc.abstractmethod
    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """Creates an item over the steps ``[start, stop)`` of this episode.

        Blocks while the table's rate limiter forbids inserting, for `timeout` seconds at most.

        Args:
            table: the table's name.
            priority: finite and >= 0; None for the largest that this table was ever given, and 1 at least, so
                that each item is drawn soon (Schaul et al. 2016, algorithm 1).
            start: index of the first step, as `append` returned it.
            stop: index after the last step.
            inline: the item's own values, with the structure of the layout's `inline`.
            padding: steps of zeros that follow step `stop - 1` (at the end of an episode only).

        Returns:
            The item's key, or None where the backend names items later.

        Raises:
            UnknownNameError: no such table.
            SpecError: priority, inline values or the number of steps do not fit.
            ReplayTimeoutError: the rate limiter did not let the item in before the deadline.
        """

    @abc.abstractmethod
    def end_episode(self) -> None:
        """Forgets this episode's steps (items keep theirs); the next `append` returns 0 again."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Waits until replay has confirmed every item created so far.

        Raises:
            ReplayTimeoutError: not within `timeout` seconds. The items stay queued.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes, and frees the writer. May be called twice."""

    @abc.abstractmethod
    def save(self) -> dict[str, Any]:
        """Returns which stored steps this writer still refers to, so that its episode can go on after `restore`.

        Raises:
            CheckpointError: where `Replay.resumable` is False.
        """

    @abc.abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, after the replay itself was restored."""


class Sampler(abc.ABC):
    """Iterates over batches of one table; closed by its owner."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Returns whether `__next__` would return a batch without waiting."""

    @abc.abstractmethod
    def __next__(self) -> DrawnBatch:
        """Returns the next batch; keys and info of ``[B]`` and data of ``[B, ...]``, numpy arrays the caller owns.

        Raises:
            ReplayTimeoutError: no batch within the timeout.
            ReplayClosedError: replay or this sampler was closed.
        """

    def __iter__(self) -> Sampler:
        return self

    @abc.abstractmethod
    def close(self) -> None:
        """Stops sampling. May be called twice."""


class Replay(abc.ABC):
    """Holds a set of tables, written through writers and read through samplers. A context manager.

    `timeout` is in seconds and bounds every wait in a writer or sampler; None means the replay's
    own default (`default_timeout`, 60 s unless set).
    """

    tables: Mapping[str, Table]
    resumable: bool = False  # True if writers and samplers go on bit for bit after save and restore
    default_timeout: float = 60.0
    largest_priorities: dict[str, float] | None = None  # By table, where each client has to know them itself.

    @abc.abstractmethod
    def writer(self, history: int, *, timeout: float | None = None) -> Writer:
        """Makes a writer, for one stream of steps.

        Args:
            history: how many of its last steps items may still refer to.
            timeout: seconds.
        """

    @abc.abstractmethod
    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> Sampler:
        """Makes a sampler of batches of `batch_size` items of `table`."""

    @abc.abstractmethod
    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """Returns whether the rate limiter lets `num_items` items in now."""

    @abc.abstractmethod
    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities ``[B]`` of items; keys no longer in the table are passed over.

        The largest of all is what new items without a priority get; `save` keeps it, `reset` forgets it.

        Raises:
            SpecError: a priority is negative, infinite or NaN, or the shapes differ.
        """

    @abc.abstractmethod
    def info(self, table: str) -> TableInfo:
        """Returns the table's counters now."""

    def count_as_sampled(self, table: str, num_sampled: int) -> None:
        """Sets how many items the rate limit takes to have been drawn; for tables that were filled beforehand.

        Raises:
            ConfigError: the rate limit is not kept in this process.
        """
        del num_sampled
        raise ConfigError(
            f"Table {table!r}: its rate limit is kept by another process, which counts for itself. Fill replay in the "
            "process that trains."
        )

    @abc.abstractmethod
    def reset(self, table: str) -> None:
        """Removes every item and sets the counters to zero."""

    @abc.abstractmethod
    def save(self, directory: pathlib.Path) -> None:
        """Writes all contents, counters and random state into `directory`, which exists and is empty."""

    @abc.abstractmethod
    def restore(self, directory: pathlib.Path) -> None:
        """Restores the contents that `save` wrote; to be called before any writer or sampler is made.

        Raises:
            CheckpointError: unreadable, or saved by tables whose `fingerprint` differs: says where.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the tables; everyone who waits gets `ReplayClosedError`. May be called twice."""

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def table(self, name: str) -> Table:
        """Returns the description of the table of this name."""
        if name not in self.tables:
            raise unknown_name("replay table", name, self.tables)
        return self.tables[name]


def index_tables(tables: Sequence[Table]) -> dict[str, Table]:
    """Returns tables by name; refuses none at all, and two of one name."""
    if not tables:
        raise ConfigError("A replay needs at least one table, found none.")
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise ConfigError(f"Tables need different names, found {names}.")
    return dict(zip(names, tables, strict=True))


def check_priority(table: str, priority: float) -> None:
    """Refuses a priority that would corrupt a sum tree or stop a Reverb table for good."""
    if not (priority >= 0 and math.isfinite(priority)):
        raise SpecError(
            f"Table {table!r}: a priority must be finite and at least 0, found {priority!r}. "
            "Check the priority function, or the TD errors, for NaN and sign."
        )


def check_priorities(table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Applies `check_priority` to the vectors ``[B]`` given to `Replay.update_priorities`."""
    if np.shape(keys) != np.shape(priorities) or np.ndim(keys) != 1:
        raise SpecError(
            f"Table {table!r}: expected keys and priorities of one shape [B], "
            f"found {np.shape(keys)} and {np.shape(priorities)}."
        )
    bad = ~(np.isfinite(priorities) & (np.asarray(priorities) >= 0))
    if bad.any():
        check_priority(table, float(np.asarray(priorities)[bad][0]))


def never_due(table: str, batch_size: int) -> ConfigError:
    """Returns the error of a draw that is not due, in the thread that would have to insert what it waits for."""
    return ConfigError(
        f"Table {table!r}: expected a draw when the rate limit lets a batch of {batch_size} through, found one before. "
        "The thread that draws is the one that inserts here, and would wait for ever. Draw one batch in each step() of "
        "a learner, or ask the dataset's ready() first."
    )


def check_timeout(timeout: float | None, default: float) -> float:
    """Returns the seconds to wait: `timeout`, or `default` where it is None; refuses anything that is no deadline."""
    seconds = default if timeout is None else timeout
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ConfigError(f"A timeout must be a finite number of seconds >= 0, or None, found {seconds!r}.")
    return float(seconds)


def check_history(history: int) -> int:
    """Refuses a writer's history that keeps no step."""
    if history < 1:
        raise ConfigError(f"A writer's history must be at least 1 step, found {history}.")
    return int(history)


def check_steps(table: Table, num_steps: int, history: int, start: int, stop: int, padding: int) -> None:
    """Refuses a range of steps that an item of `table` cannot refer to.

    Args:
        table: where the item is to go.
        num_steps: steps appended in this episode so far.
        history: how many of the last of them the writer keeps.
        start: index of the item's first step.
        stop: index after its last.
        padding: steps of zeros after that.

    Raises:
        SpecError: saying which rule is broken.
    """
    if not 0 <= start < stop <= num_steps:
        raise SpecError(
            f"Table {table.name!r}: an item needs steps 0 <= start < stop <= {num_steps} (appended in this "
            f"episode), found start={start}, stop={stop}."
        )
    before = table.layout.longest_history
    if before and start - before < num_steps - history:
        raise SpecError(
            f"Table {table.name!r}: an item from step {start} on takes the {before} steps before, too, and the writer "
            f"keeps {history} of {num_steps}. Make the writer with a longer history."
        )
    if before and padding and table.layout.history(Select.LAST):
        raise SpecError(f"Table {table.name!r}: padding has no history, and a leaf takes that of the last step.")
    if start < num_steps - history:
        raise SpecError(
            f"Table {table.name!r}: step {start} is no longer in the writer's history of {history} steps "
            f"(the oldest is {max(0, num_steps - history)}). Make the writer with a longer history."
        )
    if padding < 0:
        raise SpecError(f"Table {table.name!r}: padding must be 0 or more, found {padding}.")
    length = table.layout.length
    if length is not None and stop - start + padding != length:
        raise SpecError(
            f"Table {table.name!r}: every item has {length} steps, found {stop - start} and {padding} of padding."
        )
    most = table.layout.max_length
    if most is not None and stop - start + padding > most:
        raise SpecError(
            f"Table {table.name!r}: an item has {most} steps at most, found {stop - start} and {padding} of padding."
        )
