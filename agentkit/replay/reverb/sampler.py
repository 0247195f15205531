"""Batches from a Reverb table: a thread draws ahead, so that every wait can be bounded and stopped.

This file does not import Reverb; `replay.py` hands it what it needs.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import tree

from agentkit.errors import AgentkitError, ReplayClosedError
from agentkit.nests import make_builder
from agentkit.replay.base import Sampler
from agentkit.replay.table import Table
from agentkit.types import DrawnBatch, Nest, ReplaySample, SampleInfo

Piece = list[np.ndarray]
"""Some sampled items: the keys, the fields of `SampleInfo`, the data's leaves, each ``[n, ...]``."""

CLOSE_SECONDS = 3.0
"""How long `close` waits for its thread. One that waits for a dead server is left behind (a daemon)."""

_NUM_INFO = 1 + len(SampleInfo._fields)  # the keys, and what is known of the items


def join(held: Piece | None, piece: Piece) -> Piece:
    """Returns `piece` behind the items that are held, if there are any."""
    if held is None:
        return piece
    return [np.concatenate(both) for both in zip(held, piece, strict=True)]


def cut(held: Piece, size: int) -> tuple[Piece, Piece | None]:
    """Returns the first `size` items, and those that are left."""
    if len(held[0]) == size:
        return held, None
    return [leaf[:size] for leaf in held], [leaf[size:].copy() for leaf in held]


def as_batch(leaves: Piece, build: Callable[[Iterator[np.ndarray]], Nest]) -> DrawnBatch:
    """Puts together the leaves of a batch, with the function that `make_builder` made."""
    sample = ReplaySample(SampleInfo(*leaves[1:_NUM_INFO]), build(iter(leaves[_NUM_INFO:])))
    return DrawnBatch(leaves[0], sample)


class ReverbSampler(Sampler):
    """Iterates over batches that a daemon thread fetches, at most `lookahead` of them in advance.

    The thread never asks for what the rate limiter would hold back: it polls `can_sample` first. What
    comes nevertheless in pieces (another sampler was faster) is put together to whole batches, so no
    item is lost, but for those fetched and not taken when the sampler is closed.
    """

    def __init__(
        self,
        table: Table,
        batch_size: int,
        *,
        make_pieces: Callable[[], Iterator[Piece]],
        can_sample: Callable[[int], bool],
        why_late: Callable[[float], Exception],
        timeout: float,
        streams: bool,
    ):
        """Starts the thread.

        Args:
            table: sampled.
            batch_size: B.
            make_pieces: makes an iterator of pieces, which ends when the rate limiter stops it.
            can_sample: whether this many items may be drawn now; raises where the server is silent.
            why_late: makes the error for a wait of this many seconds.
            timeout: seconds.
            streams: whether the iterator draws on by itself, as one may where nothing limits the rate;
                else each of its pieces is drawn when asked for.
        """
        self._table = table
        self._batch_size = batch_size
        self._make_pieces = make_pieces
        self._can_sample = can_sample
        self._why_late = why_late
        self._timeout = timeout
        self._streams = streams
        self._lookahead = 2 if streams else 1
        self._build = make_builder(tree.map_structure(lambda _: 0, table.layout.data))
        self._pieces: Iterator[Piece] | None = None  # only the thread uses it
        self._held: Piece | None = None  # fetched, and less than a batch
        self._changed = threading.Condition()
        self._batches: collections.deque[Piece] = collections.deque()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"sampler-{table.name}", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        """Implements `Sampler.ready`. Where it is False, the thread that fetches gets a chance to run."""
        if self._batches:
            return True
        time.sleep(0)  # else a caller who asks in a loop keeps Python's lock for 5 ms at a time
        return bool(self._batches)

    def __next__(self) -> DrawnBatch:
        """See `Sampler`."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closed or self._error, self._timeout)
            if self._closed:
                raise ReplayClosedError(f"The sampler of table {self._table.name!r}, or its replay, is closed.")
            if self._batches:
                leaves = self._batches.popleft()
                self._changed.notify_all()
                return as_batch(leaves, self._build)
            if self._error is not None:
                raise ReplayClosedError(
                    f"Sampling table {self._table.name!r} failed for good: {self._error}"
                ) from self._error
        raise self._why_late(self._timeout)

    def close(self) -> None:
        """Implements `Sampler.close`."""
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                batch = self._fetch()
                if batch is None:
                    return
                with self._changed:
                    if not self._closed:
                        self._batches.append(batch)
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._pieces = None  # stops its streams

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._lookahead or self._closed)
            return not self._closed

    def _fetch(self) -> Piece | None:
        """Returns the next whole batch; None when closed."""
        size = self._batch_size
        held, self._held = self._held, None
        while held is None or len(held[0]) < size:
            missing = size if held is None else size - len(held[0])
            if (self._pieces is None or not self._streams) and not self._wait_until_allowed(missing):
                return None
            if self._pieces is None:
                self._pieces = self._make_pieces()
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            else:
                held = join(held, piece)
        batch, self._held = cut(held, size)
        return batch

    def _wait_until_allowed(self, num_items: int) -> bool:
        """Polls until the rate limiter lets this many items through; False when closed."""
        delay = 0.0005
        while not self._closed:
            try:
                if self._can_sample(num_items):
                    return True
            except AgentkitError:
                delay = 0.1  # The server is silent. Who waits for a batch is told so in time.
            time.sleep(delay)
            delay = min(2 * delay, 0.02) if delay < 0.1 else delay
        return False
