"""Writes steps and items to Reverb tables, checked on our side before they reach the server.

This file does not import Reverb; `replay.py` hands it Reverb's C++ writer.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentkit import specs
from agentkit.errors import CheckpointError, ReplayClosedError, SpecError, unknown_name
from agentkit.nests import LeafReader
from agentkit.replay.base import Writer, check_priority, check_steps
from agentkit.replay.reverb.item_plans import ItemPlan, TableGroup, check_power
from agentkit.replay.reverb.packing import to_bytes
from agentkit.replay.table import Select, describe_leaves
from agentkit.types import Nest

SLICE_MS = 100
"""A wait for confirmation is cut in slices, between which a writer notices that its replay closed."""

CONFIRM_MS = 20
"""How long `try_confirm` waits: many times what a server takes that is not held back."""

PROMPT_SECONDS = 0.1
"""Items are handed to Reverb's writer some together, which costs it, and the server, less than one by one.
A writer whose chunks fill more slowly than this sends them as they are; at an episode's end, a tenth of it."""

Ref = Any
"""Reverb's reference to a row that was sent, or will be."""


class ReverbWriter(Writer):
    """Writes one stream of steps; see `Writer`. Items are confirmed in the background, `MAX_IN_FLIGHT` at a time.

    Nothing is sent that would harm the server: structure, shapes, dtypes, priorities and ranges are
    checked here. Reverb's own episodes are not used: ending one would wait for the rate limiter.
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        history: int,
        *,
        make_writer: Callable[[Sequence[int], int], Any],
        is_closed: Callable[[], bool],
        why_late: Callable[[str, float], Exception],
        timeout: float,
        largest_priorities: dict[str, float],
        admit: Callable[[str, float], None] | None = None,
    ):
        """Makes a writer.

        Args:
            groups: columns of the replay's tables; the first step says which group is written to.
            history: steps that items may refer to.
            make_writer: Reverb's C++ writer of columns with these chunk lengths that keeps this many rows of each.
            is_closed: whether the replay was closed.
            why_late: makes the error for a wait of this many seconds for these tables.
            timeout: seconds.
            largest_priorities: by table, which new items get where none is given, and raise where theirs are larger.
            admit: called before an item is created, with its table and `timeout`: waits until it may be.
        """
        self._admit = admit
        self._largest_priorities = largest_priorities
        self._groups = groups
        self._history = history
        self._make_writer = make_writer
        self._is_closed = is_closed
        self._why_late = why_late
        self._timeout = timeout
        self._closed = False
        self._lock = threading.Lock()  # around Reverb's writer: `close` may come from another thread
        self._columns: TableGroup | None = None
        self._writer: Any = None
        self._readers = [LeafReader(group.step, "step") for group in groups]
        self._fed: set[str] = set()
        self._unconfirmed: dict[str, int] = {}  # at most so many, by table
        self._pending: collections.deque[tuple[ItemPlan, float, bytes]] = collections.deque()  # not yet Reverb's
        self._unchecked = 0  # items since the last wait
        self._sent = 0.0  # when all that was written was last sent
        self._start_episode()
        if len(groups) == 1:
            self._choose(0)

    def _start_episode(self) -> None:
        self._num_steps = 0
        self._steps: list[bytes] = []  # the newest steps, for items that are rows of their own
        self._refs: list[Ref] = []  # to the same steps, for items that refer to them
        self._padded = False
        self._padding: list[Ref] = []  # references to rows of zeros behind the last step
        self._last: tuple[Any, bytes] = (None, b"")  # what the last row of an item was made of, and the row
        self._last_inline: tuple[Any, Ref] = (None, None)  # the last row of inline values, and the reference

    def _choose(self, number: int) -> None:
        self._columns = self._groups[number]
        # Of the steps, also of padding; of rows of items' own, the newest, which several tables may take.
        keep = self._history + max(self._columns.max_length, 1) + self._columns.slack
        self._writer = self._make_writer(self._columns.chunk_lengths, keep)
        self._read = self._readers[number]
        self._zeros = bytes(next(iter(self._columns.plans.values())).packing.step_bytes)
        self._nothing = [None] * len(self._columns.chunk_lengths)
        self._wait_period = max(1, self._columns.max_in_flight // 10)

    def append(self, step: Nest) -> int:
        """Implements `Writer.append`."""
        self._check_open()
        columns = self._columns
        if columns is None:
            self._choose(self._find_group(step))
            columns = self._columns
            assert columns is not None
        if self._padded:
            raise SpecError("A step was appended behind padding. Padding ends an episode: call end_episode first.")
        row = to_bytes(self._read(step))
        if columns.sends_steps:
            with self._lock:
                if self._num_steps == 0:  # What is before an episode, for items that look there.
                    self._refs = [self._send(0, self._zeros) for _ in range(columns.history)]
                self._refs.append(self._send(0, row))
            _trim(self._refs, self._history + columns.slack)
        if columns.keeps_steps:
            self._steps.append(row)
            _trim(self._steps, self._history)
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

    def _send(self, column: int, row: bytes) -> Ref:
        """Hands a row to Reverb's writer, whose lock the caller holds."""
        values: list[Any] = self._nothing.copy()
        values[column] = np.frombuffer(row, np.uint8)
        try:
            return self._writer.Append(values)[column]
        except RuntimeError as error:
            raise self._broken(error) from error

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> int | None:
        """Implements `Writer.create_item`. Reverb names the item later: returns None."""
        self._check_open()
        plan = self._plan(table)
        is_given = priority is not None
        priority = self._largest_priorities[table] if priority is None else float(priority)
        if not 0 <= priority <= plan.most:
            check_priority(table, priority)
            check_power(plan.table, priority)
        check_steps(plan.table, self._num_steps, self._history, start, stop, padding)
        own = to_bytes(plan.read_inline(inline))
        if self._admit is not None:
            self._admit(table, self._timeout)
        if is_given and priority > self._largest_priorities[table]:
            self._largest_priorities[table] = priority
        if padding:
            self._padded = True
        if plan.packing.whole:
            self._pending.append((plan, priority, self._whole_row(plan, start, stop, own, padding)))
        else:
            with self._lock:
                self._create(plan, priority, self._trajectory(plan, start, stop, own, padding))
        self._fed.add(table)
        assert self._columns is not None
        most = self._columns.max_in_flight
        self._unconfirmed[table] = min(self._unconfirmed.get(table, 0) + 1, max(most, 1))
        self._unchecked += 1
        if self._unchecked >= self._wait_period:
            self._wait(max(0, most - self._wait_period))
            self._unchecked = 0
            self._sent = time.monotonic()
        elif time.monotonic() - self._sent > PROMPT_SECONDS:
            self._hurry()
        return None

    def _create(self, plan: ItemPlan, priority: float, trajectory: list[list[Ref]]) -> None:
        try:
            self._writer.CreateItem(plan.table.name, priority, trajectory, plan.squeezed)
        except (RuntimeError, ValueError) as error:
            raise self._broken(error) from error

    def _send_pending(self) -> None:
        """Hands the pending items to Reverb's writer, whose lock the caller holds."""
        pending, last, ref = self._pending, None, None
        while pending:
            plan, priority, row = pending.popleft()
            if row is not last:  # else the same row for another table
                last, ref = row, self._send(plan.column, row)
            self._create(plan, priority, [[ref]])

    def _whole_row(self, plan: ItemPlan, start: int, stop: int, inline: bytes, padding: int) -> bytes:
        """Returns an item that is a row; the same object where the last item had the same one."""
        which = (plan.column, start, stop, padding, inline)
        if which != self._last[0]:
            steps = self._steps[start - self._num_steps : stop - self._num_steps or None]
            if padding:
                # Where only the first and the last step count, one row of zeros is as good as many.
                steps += [self._zeros] * (1 if plan.table.layout.length is None else padding)
            self._last = which, plan.packing.row(steps, inline)
        return self._last[1]

    def _trajectory(self, plan: ItemPlan, start: int, stop: int, inline: bytes, padding: int) -> list[list[Ref]]:
        """Returns the references of the columns of an item that is not one row."""
        packing = plan.packing
        zeros = min(padding, 1) if plan.table.layout.length is None else padding
        while len(self._padding) < zeros:
            self._padding.append(self._send(0, self._zeros))
        num_steps = stop - start + zeros
        before, own = packing.rows_before(num_steps), packing.own_row(inline, num_steps)
        begin = start - before - self._num_steps
        rows = self._refs[begin : stop - self._num_steps or None] + self._padding[:zeros]
        trajectory: list[list[Ref]] = []
        for part in packing.parts:
            if part.select is Select.FIRST:
                trajectory.append(rows[before - part.history : before + 1])
            elif part.select is Select.LAST:
                trajectory.append(rows[len(rows) - 1 - part.history :])
            elif part.select is Select.ALL:
                trajectory.append(rows[before - part.history :])
            else:
                if self._last_inline[0] != (plan.column, own):
                    self._last_inline = (plan.column, own), self._send(plan.column, own)
                trajectory.append([self._last_inline[1]])
        return trajectory

    def _plan(self, table: str) -> ItemPlan:
        if self._columns is not None and table in self._columns.plans:
            return self._columns.plans[table]
        known = [name for group in self._groups for name in group.plans]
        if table not in known:
            raise unknown_name("replay table", table, known)
        raise SpecError(
            f"Table {table!r} takes other steps than this writer's. Use another writer for it: each feeds "
            "tables of one step structure."
        )

    def end_episode(self) -> None:
        """Implements `Writer.end_episode`."""
        self._check_open()
        if self._unchecked and time.monotonic() - self._sent > PROMPT_SECONDS / 10:
            self._hurry()
        self._start_episode()

    def _hurry(self) -> None:
        """Sends what waits for its chunk to be full, and waits for hardly a moment."""
        with self._lock:
            self._send_pending()
            with contextlib.suppress(RuntimeError):  # not yet confirmed; or broken, as the next call says
                self._writer.Flush(0, 1)  # 0 milliseconds would be for ever
        self._sent = time.monotonic()

    def flush(self) -> None:
        """Implements `Writer.flush`."""
        self._check_open()
        if self._writer is not None:
            self._wait(0)

    def num_unconfirmed(self, table: str) -> int:
        """Returns the most items that may be on their way to this table."""
        return self._unconfirmed.get(table, 0)

    def try_confirm(self) -> bool:
        """Returns whether all items so far are confirmed, or become so in a moment; from any thread."""
        with self._lock:
            if self._closed or not self._unconfirmed:
                return True
            try:
                self._send_pending()
                self._writer.Flush(0, CONFIRM_MS)
            except (RuntimeError, ReplayClosedError):
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
                self._send_pending()
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
        """Implements `Writer.close`."""
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
        self._pending.clear()
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


def _trim(rows: list[Any], history: int) -> None:
    """Drops rows older than `history`, now and then."""
    if len(rows) > 2 * history:
        del rows[: len(rows) - history]
