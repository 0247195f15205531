"""Writes steps and items to Reverb tables, checked on our side before they reach the server.

This file does not import Reverb; `agentkit.replay.reverb` hands it Reverb's C++ writer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ReplayClosedError, SpecError, unknown_name
from agentkit.replay.base import Writer, check_priority, check_steps
from agentkit.replay.nest_codec import LeafReader
from agentkit.replay.selectors import max_priority
from agentkit.replay.table import FromInline, Select, Table, describe_leaves
from agentkit.types import Nest

MAX_IN_FLIGHT = 40
"""Items that may wait for confirmation, so that none queue without bound in an actor. Above 50 Reverb
prints a warning for every tenth item."""

MIN_IN_FLIGHT = 8
"""The same where the rate limiter's error buffer is small: what waits here is not counted there."""

SLICE_MS = 100
"""A wait for confirmation is cut in slices, between which a writer notices that its replay closed."""

CONFIRM_MS = 20
"""How long `try_confirm` waits: many times what a server takes that is not held back."""

TRANSITION_CHUNK = 2
"""Steps compressed together where items take single steps: fastest, as measured."""

MAX_SEQUENCE_CHUNK = 32
"""The most steps compressed together where items take sequences."""

Column = list[Any]
"""References to stored values of one leaf, in the order of its steps."""


class _Plan(NamedTuple):
    """How items of one table are made of stored values.

    Attributes:
        table: as described.
        sources: of each leaf of the data: (column, select), select None for an inline value.
        squeezed: of each leaf, whether it is one value, without a time axis.
        read_inline: checks and flattens inline values.
        first_inline: the column of its first inline leaf.
    """

    table: Table
    sources: list[tuple[int, Select | None]]
    squeezed: list[bool]
    read_inline: LeafReader
    first_inline: int


class Columns:
    """Where each leaf of the steps and inline values of some tables is stored.

    Args:
        tables: of one step structure.
    """

    def __init__(self, tables: Sequence[Table]):
        self.step = tables[0].layout.step
        self.num_step = len(tree.flatten(self.step))
        self.plans: dict[str, _Plan] = {}
        total = self.num_step
        first_of: dict[str, int] = {}  # tables whose inline values look alike share their columns
        for table in tables:
            key = repr(describe_leaves(table.layout.inline))
            if key not in first_of:
                first_of[key] = total
                total += len(tree.flatten(table.layout.inline))
            self.plans[table.name] = _make_plan(table, first_of[key])
        self.num_columns = total
        lengths = [table.layout.length or 0 for table in tables]
        self.max_length = max(lengths)
        self.chunk_length = min(self.max_length or TRANSITION_CHUNK, MAX_SEQUENCE_CHUNK)
        self.max_in_flight = min(_in_flight(table) for table in tables)


def _make_plan(table: Table, first_inline: int) -> _Plan:
    sources: list[tuple[int, Select | None]] = []
    for source in tree.flatten(table.layout.data):
        if isinstance(source, FromInline):
            sources.append((first_inline + source.column, None))
        else:
            sources.append((source.column, source.select))
    squeezed = [select is not Select.ALL for _, select in sources]
    reader = LeafReader(table.layout.inline, "inline values")
    return _Plan(table, sources, squeezed, reader, first_inline)


def _in_flight(table: Table) -> int:
    """Items that may be on their way without upsetting the rate limiter's balance."""
    limiter = table.rate_limiter
    slack = (limiter.max_difference - limiter.min_difference) / limiter.samples_per_insert / 4
    return int(min(max(slack, MIN_IN_FLIGHT), MAX_IN_FLIGHT))


def check_power(table: Table, priority: float) -> None:
    """Refuses a finite priority whose power would overflow in Reverb's sum tree.

    Raises:
        SpecError: says what fits.
    """
    most = max_priority(table)
    if priority > most:
        raise SpecError(
            f"Table {table.name!r}: a priority of {priority:g} is too great for {table.sampler}, "
            f"{table.remover}; at most {most:g} fits. Scale it down."
        )


def group_tables(tables: Mapping[str, Table]) -> list[Columns]:
    """The tables' columns, one entry for every step structure among them."""
    groups: dict[str, list[Table]] = {}
    for table in tables.values():
        key = repr((describe_leaves(table.layout.step), tree.map_structure(lambda _: 0, table.layout.step)))
        groups.setdefault(key, []).append(table)
    return [Columns(group) for group in groups.values()]


class ReverbWriter(Writer):
    """See `Writer`. Items are confirmed in the background; at most `MAX_IN_FLIGHT` are on their way.

    Nothing is sent that would harm the server: structure, shapes, dtypes, priorities and ranges are
    checked here. Reverb's own episodes are not used: ending one would wait for the rate limiter.
    """

    def __init__(
        self,
        groups: Sequence[Columns],
        history: int,
        *,
        make_writer: Callable[[Columns, int], Any],
        is_closed: Callable[[], bool],
        why_late: Callable[[str, float], Exception],
        timeout: float,
    ):
        """Makes a writer.

        Args:
            groups: columns of the replay's tables; the first step says which group is written to.
            history: steps that items may refer to.
            make_writer: Reverb's C++ writer for these columns that keeps this many steps.
            is_closed: whether the replay was closed.
            why_late: makes the error for a wait of this many seconds for these tables.
            timeout: seconds.
        """
        self._groups = groups
        self._history = history
        self._make_writer = make_writer
        self._is_closed = is_closed
        self._why_late = why_late
        self._timeout = timeout
        self._closed = False
        self._lock = threading.Lock()  # around Reverb's writer: `close` may come from another thread
        self._columns: Columns | None = None
        self._writer: Any = None
        self._readers = [LeafReader(group.step, "step") for group in groups]
        self._fed: set[str] = set()
        self._unconfirmed: dict[str, int] = {}  # at most so many, by table
        self._start_episode()
        if len(groups) == 1:
            self._choose(0)

    def _start_episode(self) -> None:
        self._rows: list[list[Any]] = []  # references to the newest steps' values
        self._num_steps = 0
        self._padding: list[list[Any]] = []  # the same of rows of zeros behind the last step
        self._inline: tuple[int, Sequence[Any], list[Any]] = (-1, (), [])  # column, leaves, references

    def _choose(self, number: int) -> None:
        self._columns = self._groups[number]
        keep = max(self._history + max(self._columns.max_length, 1), self._columns.chunk_length)
        self._writer = self._make_writer(self._columns, keep)
        self._read = self._readers[number]
        self._no_inline = [None] * (self._columns.num_columns - self._columns.num_step)
        self._zeros = tree.flatten(specs.zeros(self._columns.step))

    def append(self, step: Nest) -> int:
        """See `Writer`."""
        self._check_open()
        if self._columns is None:
            self._choose(self._find_group(step))
        if self._padding:
            raise SpecError("A step was appended behind padding. Padding ends an episode: call end_episode first.")
        refs = self._append([*self._read(step), *self._no_inline])
        rows = self._rows
        rows.append(refs)
        if len(rows) > 2 * self._history:
            del rows[: len(rows) - self._history]
        self._num_steps += 1
        return self._num_steps - 1

    def _find_group(self, step: Nest) -> int:
        for number, reader in enumerate(self._readers):
            with contextlib.suppress(SpecError):
                reader(step)
                return number
        names = [sorted(group.plans) for group in self._groups]
        leaves = [describe_leaves(group.step) for group in self._groups]
        raise SpecError(
            f"step fits no table: expected {' or '.join(map(repr, leaves))} (tables {names}), "
            f"found {describe_leaves(specs.spec_of(step))}."
        )

    def _append(self, leaves: list[Any]) -> list[Any]:
        with self._lock:
            try:
                return self._writer.Append(leaves)
            except RuntimeError as error:
                raise self._broken(error) from error

    def create_item(
        self, table: str, priority: float, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """See `Writer`. Reverb names the item later: returns None."""
        self._check_open()
        plan = self._plan(table)
        priority = float(priority)
        check_priority(table, priority)
        check_power(plan.table, priority)
        check_steps(plan.table, self._num_steps, self._history, start, stop, padding)
        inline_leaves = plan.read_inline(inline)
        rows = self._rows[start - self._num_steps : stop - self._num_steps or None]
        if padding:
            # Where only the first and the last step count, one row of zeros is as good as many.
            rows = rows + self._pad(1 if plan.table.layout.length is None else padding)
        inline_refs = self._append_inline(plan, inline_leaves) if inline_leaves else []
        trajectory: list[Column] = []
        for column, select in plan.sources:
            if select is None:
                trajectory.append([inline_refs[column]])
            elif select is Select.FIRST:
                trajectory.append([rows[0][column]])
            elif select is Select.LAST:
                trajectory.append([rows[-1][column]])
            else:
                trajectory.append([row[column] for row in rows])
        with self._lock:
            try:
                self._writer.CreateItem(table, priority, trajectory, plan.squeezed)
            except (RuntimeError, ValueError) as error:
                raise self._broken(error) from error
        self._fed.add(table)
        assert self._columns is not None
        most = self._columns.max_in_flight
        self._unconfirmed[table] = min(self._unconfirmed.get(table, 0), most) + 1
        self._wait(most)
        return None

    def _plan(self, table: str) -> _Plan:
        if self._columns is not None and table in self._columns.plans:
            return self._columns.plans[table]
        known = [name for group in self._groups for name in group.plans]
        if table not in known:
            raise unknown_name("replay table", table, known)
        raise SpecError(
            f"Table {table!r} takes other steps than this writer's. Use another writer for it: each feeds "
            "tables of one step structure."
        )

    def _pad(self, padding: int) -> list[list[Any]]:
        while len(self._padding) < padding:
            self._padding.append(self._append([*self._zeros, *self._no_inline]))
        return self._padding[:padding]

    def _append_inline(self, plan: _Plan, leaves: Sequence[Any]) -> list[Any]:
        """References to inline values; stored once if several tables get the same ones."""
        column, last, refs = self._inline
        if column == plan.first_inline and all(
            a is b and isinstance(a, np.generic) for a, b in zip(leaves, last, strict=True)
        ):
            return refs
        assert self._columns is not None
        row: list[Any] = [None] * self._columns.num_columns
        row[plan.first_inline : plan.first_inline + len(leaves)] = leaves
        refs = self._append(row)
        self._inline = (plan.first_inline, leaves, refs)
        return refs

    def end_episode(self) -> None:
        """See `Writer`."""
        self._check_open()
        self._start_episode()

    def flush(self) -> None:
        """See `Writer`."""
        self._check_open()
        if self._writer is not None:
            self._wait(0)

    def num_unconfirmed(self, table: str) -> int:
        """The most items that may be on their way to this table."""
        return self._unconfirmed.get(table, 0)

    def try_confirm(self) -> bool:
        """Whether all items so far are confirmed, or become so in a moment; from any thread."""
        with self._lock:
            if self._closed or not self._unconfirmed:
                return True
            try:
                self._writer.Flush(0, CONFIRM_MS)
            except RuntimeError:
                return False  # held back, or broken: the writer's own next call says which
            self._unconfirmed = {}
            return True

    def _wait(self, allowed: int) -> None:
        """Waits until at most `allowed` items are unconfirmed."""
        started = time.monotonic()
        while True:
            left = self._timeout - (time.monotonic() - started)
            with self._lock:
                if self._closed or self._is_closed():
                    raise ReplayClosedError("The replay was closed while a writer waited for it.")
                try:
                    self._writer.Flush(allowed, max(1, min(SLICE_MS, int(1000 * left))))
                    if allowed == 0:
                        self._unconfirmed = {}
                    return
                except RuntimeError as error:
                    if "Timeout exceeded" not in str(error):
                        raise self._broken(error) from error
            if time.monotonic() - started >= self._timeout:
                raise self._why_late(", ".join(map(repr, sorted(self._fed))), self._timeout)

    def _broken(self, error: Exception) -> Exception:
        return ReplayClosedError(f"Reverb's writer failed for good; make a new one. Reverb says: {error}")

    def _check_open(self) -> None:
        if self._closed or self._is_closed():
            raise ReplayClosedError("This writer, or its replay, is closed.")

    def close(self) -> None:
        """See `Writer`."""
        if self._closed:
            return
        try:
            if self._writer is not None and not self._is_closed():
                self._wait(0)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes without waiting; items that are not confirmed may be lost."""
        self._closed = True
        self._start_episode()
        if self._writer is not None and self._lock.acquire(timeout=1.0):
            try:
                self._writer.Close()
            finally:
                self._lock.release()

    def save(self) -> dict[str, Any]:
        """Raises CheckpointError: a Reverb server keeps items, not the steps of open episodes."""
        raise CheckpointError(
            "A Reverb writer's episode cannot be saved: the server keeps items, not the steps that later "
            "items may refer to. Save between episodes, without the writer, or use the in-process replay."
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError, as `save` does."""
        raise CheckpointError("A Reverb writer's episode cannot be restored; start a new episode.")
