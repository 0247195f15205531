"""A writer of a served replay: numbered blocks, each of which goes in once, whatever happens to the server."""

from __future__ import annotations

import collections
import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from agentkit.errors import AgentkitError, CheckpointError, ReplayClosedError, ReplayTimeoutError
from agentkit.replay import base
from agentkit.replay.in_process.shared import SharedTables
from agentkit.replay.in_process.writer import find_items, find_store
from agentkit.replay.served.answers import as_replay_errors
from agentkit.replay.served.server import UNKNOWN_WRITER
from agentkit.replay.table import Table
from agentkit.types import Nest
from agentkit.wire import Client, RefusedError, WireClosedError, WireTimeoutError

MAX_STEPS = 256
"""Steps of a block; fewer of large ones."""

MAX_BYTES = 1 << 20
"""Of the steps of a block, about."""

MAX_ITEMS = 256
"""Items of a block; fewer where the rate limiter is tight."""

MAX_UNDER_WAY = 2
"""Blocks that a writer has sent and that are not in yet: its credit. It waits before it sends another."""

AGE_SECONDS = 0.1
"""A block that was begun longer ago goes off, however small it is."""


WhyLate = Callable[[Sequence[str], float], Exception]
"""From the names of tables that let nothing in, and the seconds that were waited, to the error to raise."""


def most_items(table: Table) -> int:
    """Returns how many items of a table a block may hold without upsetting its rate limiter's balance; 0 for none."""
    limiter = table.rate_limiter
    inserts = (limiter.max_difference - limiter.min_difference) / limiter.samples_per_insert
    return 0 if inserts < 2 else int(min(MAX_ITEMS, max(1, inserts / 8)))


class _Block:
    """Gathers steps and items of one stream, in the form that `agentkit.replay.served.streams` describes.

    Args:
        spec: of a step.
        position: the number of its first step.
    """

    def __init__(self, spec: Nest, position: int):
        self.position = position
        self.count = 0
        self.num_items = 0
        leaves = tree.flatten(spec)
        step_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        self.capacity = min(MAX_STEPS, max(1, MAX_BYTES // max(1, step_bytes)))
        self._columns = [np.empty((self.capacity, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._starts: list[int] = []
        self._groups: list[tuple[str, list[tuple[int, int, int, float]], list[list[Any]]]] = []

    def add_step(self, leaves: Any, starts: bool) -> None:
        """Copies a step's leaves; `starts` says that it begins an episode."""
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[self.count] = leaf
        if starts:
            self._starts.append(self.count)
        self.count += 1

    def add_item(self, table: str, item: tuple[int, int, int, float], inline: Any) -> None:
        """Notes an item: (first, stop, padding, priority), steps by their numbers."""
        if not self._groups or self._groups[-1][0] != table:
            self._groups.append((table, [], []))
        self._groups[-1][1].append(item)
        self._groups[-1][2].append([np.array(leaf) for leaf in inline])
        self.num_items += 1

    def finish(self, sequence: int) -> dict[str, Any]:
        """Returns the block."""
        return {
            "sequence": sequence,
            "position": self.position,
            "steps": [column[: self.count] for column in self._columns],
            "starts": np.array(self._starts, np.int64),
            "items": [self._finish_group(*group) for group in self._groups],
        }

    def _finish_group(
        self, table: str, items: list[tuple[int, int, int, float]], inline: list[list[Any]]
    ) -> dict[str, Any]:
        first, stop, padding, priority = zip(*items, strict=True)
        return {
            "table": table,
            "first": np.array(first, np.int64),
            "stop": np.array(stop, np.int64),
            "padding": np.array(padding, np.int32),
            "priority": np.array(priority, np.float64),
            "inline": [np.stack(leaves) for leaves in zip(*inline, strict=True)],
        }


class ServedWriter(base.Writer):
    """Gathers steps and items into blocks, and sends these; made by `ServedReplay.writer`.

    Each block goes in once, as `agentkit.replay.served.streams` says.
    """

    def __init__(self, model: SharedTables, wire: Client, history: int, timeout: float, why_late: WhyLate):
        """Takes the tables' model, a connection of its own, `Replay.writer`'s arguments, and how to explain a wait."""
        self._model, self._wire = model, wire
        self._max_steps, self._timeout, self._why_late = history, timeout, why_late
        self._name = secrets.token_hex(8)
        self._session = 0
        self._is_known = False  # Whether the server has been told this session's history.
        self._store: int | None = 0 if len(model.stores) == 1 else None
        self._num_steps = 0
        self._starts = True
        self._sequence = 0
        self._under_way: collections.deque[dict[str, Any]] = collections.deque()  # Sent, and not known to be in.
        self._history: collections.deque[dict[str, Any]] = collections.deque()  # The last ones that are known to be in.
        self._begun_at = math.inf
        self._block: _Block | None = None
        self._closed = False
        self._error: Exception | None = None
        self._lock = threading.RLock()

    def append(self, step: Nest) -> int:
        """Stores one step; see `Writer.append`. Waits while all credit is used up.

        Raises:
            ReplayTimeoutError: for longer than the timeout.
        """
        with self._lock:
            self._check_open()
            store = find_store(self._model, step) if self._store is None else self._store
            leaves = self._model.stores[store].read_leaves(step)
            if self._block is None or self._block.count >= self._block.capacity:
                self._send()
            if self._block is None:
                self._store = store
                self._block = self._begin(0)
            self._block.add_step(leaves, self._starts)
            self._starts = False
            self._begun_at = min(self._begun_at, time.monotonic())
            self._num_steps += 1
            return self._num_steps - 1

    def _begin(self, position: int) -> _Block:
        assert self._store is not None
        return _Block(self._model.stores[self._store].spec, position)

    def create_item(
        self, table: str, priority: float | None, start: int, stop: int, inline: Nest = (), padding: int = 0
    ) -> None:
        """Adds an item to the block; see `Writer.create_item`. Waits as `append` does."""
        with self._lock:
            self._check_open()
            items = find_items(self._model, table, self._store or 0, priority)
            base.check_steps(items.table, self._num_steps, self._max_steps, start, stop, padding)
            leaves = items.read_inline(inline)
            assert self._block is not None  # check_steps has found a step.
            if self._block.num_items >= max(1, most_items(items.table)):
                self._send()
            offset = self._block.position + self._block.count - self._num_steps
            number = math.nan if priority is None else float(priority)
            self._block.add_item(table, (start + offset, stop + offset, padding, number), leaves)
            self._begun_at = min(self._begun_at, time.monotonic())
            if most_items(items.table) == 0:
                self.flush()

    def end_episode(self) -> None:
        """Forgets this episode's steps; the next `append` returns 0 again."""
        with self._lock:
            self._check_open()
            self._num_steps, self._starts = 0, True

    def flush(self) -> None:
        """Sends what there is, and waits until all is in; see `Writer.flush`."""
        with self._lock:
            self._check_open()
            deadline = time.monotonic() + self._timeout
            self._send()
            while self._under_way:
                self._hear(deadline)

    def num_under_way(self, table: str) -> int:
        """Returns how many items of a table are not known to be in; sends what has not gone off, if nobody writes."""
        self.push(0.0)
        groups = [group for block in list(self._under_way) for group in block["items"]]
        return sum(len(group["first"]) for group in groups if group["table"] == table)

    def push(self, seconds: float) -> None:
        """Sends the block if it was begun so long ago, and hears what is in, unless the writer is in use or waits.

        For another thread: who writes may have nothing more to write for a while, and others wait for what there is.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._closed or self._error is not None:
                return
            if len(self._under_way) < MAX_UNDER_WAY and time.monotonic() - self._begun_at >= seconds:
                self._send()
            while self._under_way and self._hear_now(0.0):
                pass
        except (ReplayClosedError, ReplayTimeoutError):
            return  # Whoever writes next is told.
        except (AgentkitError, LookupError, TypeError, ValueError) as error:
            self._error = error
        finally:
            self._lock.release()

    # --- blocks ----------------------------------------------------------------------------------

    def _send(self) -> None:
        """Sends the block that was begun, once there is credit for it, and begins another."""
        block = self._block
        if block is None or not (block.count or block.num_items):
            return
        deadline = time.monotonic() + self._timeout
        while len(self._under_way) >= MAX_UNDER_WAY:
            self._hear(deadline)
        if not self._is_known:
            self._open()
        self._sequence += 1
        body = block.finish(self._sequence)
        self._under_way.append(body)
        self._block = self._begin(block.position + block.count)
        self._begun_at = math.inf
        self._ship(body)
        while self._under_way and self._hear_now(0.0):
            pass

    def _ship(self, body: dict[str, Any]) -> None:
        with as_replay_errors():
            self._wire.send({"do": "block", "writer": self._name, "session": self._session, **body})

    def _open(self) -> None:
        """Tells the server the steps that the next items may refer to, and sends anew what is under way."""
        self._is_known = False  # Until it answers: it may be gone again.
        self._wire.forget()
        self._session += 1
        opening = {
            "do": "open",
            "writer": self._name,
            "session": self._session,
            "store": self._store,
            "history": self._max_steps,
            "blocks": [{**block, "items": []} for block in self._history],
        }
        with as_replay_errors():
            self._wire.ask(opening, max(self._timeout, 10.0))
        self._is_known = True
        for body in self._under_way:
            self._ship(body)

    def _hear(self, deadline: float) -> None:
        """Waits for the server to say that a block is in.

        Raises:
            ReplayTimeoutError: not before the deadline.
        """
        left = deadline - time.monotonic()
        if not self._hear_now(max(left, 0.0)) and left <= 0:
            tables = {group["table"] for block in self._under_way for group in block["items"]}
            raise self._why_late(sorted(tables), self._timeout)

    def _hear_now(self, timeout: float) -> bool:
        """Returns whether the server said within `timeout` seconds that blocks are in."""
        if not self._is_known:
            self._open()
        try:
            with as_replay_errors():
                found = self._wire.receive(timeout)
        except RefusedError as error:
            if error.kind != UNKNOWN_WRITER:
                raise
            self._open()
            return False
        if found is None:
            return False
        while self._under_way and self._under_way[0]["sequence"] <= found[1]:
            self._history.append(self._under_way.popleft())
        end = self._history[-1]["position"] + len(self._history[-1]["steps"][0])
        while len(self._history) > 1 and end - self._history[1]["position"] >= self._max_steps:
            self._history.popleft()
        return True

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Flushes, and frees the writer; it is closed also where the rate limiter lets its items in too late."""
        with self._lock:
            if self._closed:
                return
            try:
                self.flush()
                with contextlib.suppress(WireTimeoutError, WireClosedError, RefusedError):
                    self._wire.ask({"do": "leave", "writer": self._name}, 2.0)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Disconnects, whatever is under way; from any thread."""
        self._closed = True
        self._wire.close()

    def save(self) -> dict[str, Any]:
        """Refuses: the steps are the server's, and a run that is resumed begins episodes anew."""
        raise CheckpointError("A writer of a served replay cannot be saved: its steps are the server's.")

    def restore(self, state: dict[str, Any]) -> None:
        """Refuses; see `save`."""
        raise CheckpointError("A writer of a served replay cannot be restored: begin an episode.")

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ReplayClosedError("This writer is closed; make a new one with replay.writer(history).")
