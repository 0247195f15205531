"""Serves an in-process replay to writers and samplers in other processes, in turns by what each turn costs.

One thread does all: it takes in what has come, and then does one piece of work, a batch or what may go in of a block.
Where both wait, batches get `DRAW_SHARE` of the processor's time: writers that push as fast as they can leave a sampler
most of its rate. Each writer has a few blocks under way and no more, and hears of each when it is in as a whole: that
is how they are held back.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tree

from agentkit.errors import AgentkitError, SpecError
from agentkit.replay.in_process import InProcessReplay
from agentkit.replay.served.streams import WriterStream
from agentkit.replay.table import Table
from agentkit.types import Seed
from agentkit.wire import Keys, Request, Server

DRAW_SHARE = 0.8
"""Of the time of a server that has more to do than it can: for batches. The rest is for what writers send."""

LAG_SECONDS = 0.02
"""Who had nothing to do for a while gets so much time back, and no more."""

LEASE_SECONDS = 600.0
"""The steps of a writer that was not heard for this long are freed; it tells them again if it comes back."""

GIVEN_SECONDS = 60.0
"""How long a batch is kept for a sampler that has not said that it came, and may ask for it again."""

MAX_TAKEN_IN = 64
"""Requests that are taken in between two pieces of work."""

MAX_CONFIRMED = 10_000
"""Writers of which it is remembered how much of theirs is in; those that are gone longest are forgotten."""

UNKNOWN_WRITER = "unknown writer"
"""Refuses a block of a writer that has to tell its history first."""


class _Draw(NamedTuple):
    """Holds a request for a batch that waits for the rate limiter."""

    request: Request
    table: str
    batch_size: int
    deadline: float


class ReplayServer:
    """Keeps tables, and answers those who write to them and draw from them; see `ServedReplay` for the other end.

    Args:
        tables: as for `InProcessReplay`.
        address: see `agentkit.wire.Server`.
        keys: the run's; needed for tcp.
        seed: of samplers and removers.
        make_replay: makes the in-process replay of the tables; None for `InProcessReplay` itself.

    Raises:
        SpecError: `make_replay` returned something else.

    Attributes:
        replay: the tables; to be restored before `serve`, and read between two calls of it.
        address: for clients.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        address: str,
        keys: Keys | None = None,
        seed: Seed = 0,
        make_replay: Callable[[Sequence[Table]], Any] | None = None,
    ):
        made = InProcessReplay(tables, seed) if make_replay is None else make_replay(tables)
        if not isinstance(made, InProcessReplay):
            raise SpecError(
                f"replay: a server hands out the tables of an InProcessReplay; expected one of the function, found "
                f"{made!r:.80}. Return one, or use agentkit.run."
            )
        self.replay = made
        self._wire = Server(address, keys)
        self.address = self._wire.address
        self._streams: dict[str, WriterStream] = {}
        self._blocks: collections.OrderedDict[str, dict[int, Request]] = collections.OrderedDict()
        self._draws: dict[str, collections.OrderedDict[tuple[str, int], _Draw]] = {
            name: collections.OrderedDict() for name in self.replay.tables
        }
        # Batches, and when they were given: their samplers may not have got them yet, and would ask again.
        self._given: dict[tuple[str, int], tuple[float, list[Any]]] = {}
        # Time used for draws and for blocks, each over its share: whoever has used less is next.
        self._used_by_draws = self._used_by_blocks = 0.0
        self._next_sweep = time.monotonic() + LEASE_SECONDS  # Writers of the server before this one come back first.
        self._handlers: dict[str, Callable[[Request], Any]] = {
            "tables": lambda request: json.dumps([table.fingerprint() for table in self.replay.tables.values()]),
            "open": self._open,
            "leave": self._leave,
            "cancel": self._cancel,
            "can_insert": lambda request: self.replay.can_insert(request.body["table"], request.body["num_items"]),
            "can_sample": self._can_sample,
            "info": lambda request: list(self.replay.info(request.body["table"])),
            "update": lambda request: self.replay.update_priorities(
                request.body["table"], request.body["keys"], request.body["priorities"]
            ),
            "count": lambda request: self.replay.count_as_sampled(request.body["table"], request.body["num_sampled"]),
            "reset": lambda request: self.replay.reset(request.body["table"]),
            "save": lambda request: self.replay.save(pathlib.Path(request.body["directory"])),
        }

    def serve(self, seconds: float) -> None:
        """Answers for so long. What waits longer waits for the next call."""
        end, wait = time.monotonic() + seconds, 0.0
        while True:
            self._take_in(wait)
            now = time.monotonic()
            if now >= end:
                return
            if now >= self._next_sweep:
                self._sweep(now)
            deadline = self._refuse_late_draws(now)
            wait = 0.0 if self._work() else max(0.0, min(end, deadline, now + 1.0) - now)

    def close(self) -> None:
        """Ends all connections and frees the tables. May be called twice."""
        self._wire.close()
        self.replay.close()

    # --- taking in -------------------------------------------------------------------------------

    def _take_in(self, wait: float) -> None:
        for _ in range(MAX_TAKEN_IN):
            started = time.thread_time()
            request = self._wire.receive(wait)
            if request is None:
                return
            wait = 0.0
            if self._handle(request):
                self._used_by_blocks += (time.thread_time() - started) / (1 - DRAW_SHARE)

    def _handle(self, request: Request) -> bool:
        """Notes a block or a draw for later, and answers all else at once; returns whether it was a block."""
        try:
            what = str(request.body["do"])
            if what == "block":
                self._note_block(request)
                return True
            elif what == "sample":
                self._note_draw(request)
            else:
                self._wire.answer(request, self._handlers[what](request))
        except AgentkitError as error:
            self._wire.refuse(request, str(error), type(error).__name__)
        except Exception as error:  # Of whatever kind: nothing that a request says may end the server.
            self._wire.refuse(request, f"A malformed request: {error!r}.", "malformed")
        return False

    def _open(self, request: Request) -> None:
        """Takes up a writer's stream."""
        opening = request.body
        known = self._streams.get(opening["writer"])
        if known is None or known.session < opening["session"]:  # Else it is asked twice, or late.
            with self.replay.shared.lock:
                made = WriterStream(self.replay.shared, opening, time.monotonic())
                if known is not None:
                    known.close()
            self._streams[made.name] = made
            self._blocks.pop(made.name, None)

    def _leave(self, request: Request) -> None:
        """Forgets a writer that has nothing under way."""
        self._drop(request.body["writer"])
        self.replay.shared.confirmed.pop(request.body["writer"], None)

    def _drop(self, writer: str) -> None:
        self._blocks.pop(writer, None)
        stream = self._streams.pop(writer, None)
        if stream is not None:
            with self.replay.shared.lock:
                stream.close()

    def _note_block(self, request: Request) -> None:
        writer, sequence = request.body["writer"], int(request.body["sequence"])
        stream = self._streams.get(writer)
        if stream is None or stream.session != request.body["session"]:
            self._wire.refuse(request, f"Writer {writer} has not told its history.", UNKNOWN_WRITER)
            return
        stream.heard = time.monotonic()
        if sequence < stream.due:
            self._wire.answer(request, sequence)
        else:
            self._blocks.setdefault(writer, {})[sequence] = request

    def _note_draw(self, request: Request) -> None:
        body = request.body
        table = self.replay.table(body["table"])
        table.check_batch(body["batch_size"])
        deadline = time.monotonic() + float(body["wait"])
        if math.isnan(deadline):
            raise ValueError("wait is no number of seconds")
        key, oldest = (body["sampler"], request.number), body["oldest_waiting"]
        self._given = {k: given for k, given in self._given.items() if k[0] != key[0] or k[1] >= oldest}
        if key in self._given:
            self._wire.answer(request, self._given[key][1])
        else:
            self._draws[table.name][key] = _Draw(request, table.name, body["batch_size"], deadline)

    def _cancel(self, request: Request) -> None:
        where: list[dict[tuple[str, int], Any]] = [self._given, *self._draws.values()]
        for kept in where:
            for key in [key for key in kept if key[0] == request.body["sampler"]]:
                del kept[key]

    def _can_sample(self, request: Request) -> bool:
        table = self.replay.table(request.body["table"]).name
        with self.replay.shared.lock:
            return self.replay.shared.items[table].can_sample(request.body["batch_size"])

    def _sweep(self, now: float) -> None:
        """Forgets, now and then, who has not been heard for long."""
        self._next_sweep = now + LEASE_SECONDS / 10
        for name, stream in list(self._streams.items()):
            if stream.due not in self._blocks.get(name, ()) and now - stream.heard > LEASE_SECONDS:
                self._drop(name)
        self._given = {key: given for key, given in self._given.items() if now - given[0] <= GIVEN_SECONDS}
        confirmed = self.replay.shared.confirmed
        for name in [name for name in self._streams if name in confirmed]:  # Behind those who are gone.
            confirmed[name] = confirmed.pop(name)
        gone = [name for name in confirmed if name not in self._streams]
        for name in itertools.islice(gone, max(0, len(confirmed) - MAX_CONFIRMED)):
            del confirmed[name]

    # --- work ------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Does one piece of work; returns whether there was any."""
        shared = self.replay.shared
        started = time.thread_time()
        with shared.lock:
            draw, stream = self._due_draw(), self._due_stream()
            if draw is None and stream is None:
                return False
            if draw is not None and (stream is None or self._used_by_draws <= self._used_by_blocks):
                self._give(draw)
                self._used_by_draws += (time.thread_time() - started) / DRAW_SHARE
            elif stream is not None:
                self._put(stream)
                self._used_by_blocks += (time.thread_time() - started) / (1 - DRAW_SHARE)
        least = max(self._used_by_draws, self._used_by_blocks) - LAG_SECONDS
        self._used_by_draws = max(self._used_by_draws, least)
        self._used_by_blocks = max(self._used_by_blocks, least)
        return True

    def _due_draw(self) -> _Draw | None:
        """Returns the oldest request of a table that has a batch for it."""
        for name, draws in self._draws.items():
            if draws:
                draw = next(iter(draws.values()))
                if self.replay.shared.items[name].can_sample(draw.batch_size):
                    return draw
        return None

    def _due_stream(self) -> WriterStream | None:
        """Returns the writer whose turn it is of those who have something that may go in."""
        for name, requests in self._blocks.items():
            stream = self._streams[name]
            if not stream.waits:
                if stream.due not in requests:
                    continue  # It is still on its way: what comes over a new connection may overtake it.
                try:
                    stream.take(requests[stream.due].body)
                except Exception as error:
                    self._refuse_stream(name, error)
                    return self._due_stream()
            table = stream.next_table()
            if table is None or table.can_insert(1):
                return stream
        return None

    def _give(self, draw: _Draw) -> None:
        """Answers with a batch: a list of its keys, the fields of `SampleInfo`, and the leaves of its data."""
        key, _ = self._draws[draw.table].popitem(last=False)
        keys, sample = self.replay.shared.items[draw.table].sample(draw.batch_size)
        batch = [keys, *sample.info, *tree.flatten(sample.data)]
        self._given[key] = time.monotonic(), batch
        self._wire.answer(draw.request, batch)

    def _put(self, stream: WriterStream) -> None:
        """Lets in what may go in of a writer's block, and tells it when all is in."""
        requests, sequence = self._blocks[stream.name], stream.due
        self._blocks.move_to_end(stream.name)
        try:
            whole = stream.advance()
        except Exception as error:
            self._refuse_stream(stream.name, error)
            return
        if whole:
            self._wire.answer(requests.pop(sequence), sequence)
            if not requests:
                del self._blocks[stream.name]

    def _refuse_stream(self, name: str, error: Exception) -> None:
        """Ends the stream of a writer whose block does not fit: it is another version's, or damaged."""
        for request in self._blocks.pop(name, {}).values():
            self._wire.refuse(request, f"A block does not fit the tables: {error!r}.", "SpecError")
        self._streams.pop(name).close()

    def _refuse_late_draws(self, now: float) -> float:
        """Tells samplers that they have waited long enough; returns when the next one will have."""
        soonest = float("inf")
        for name, draws in self._draws.items():
            for key, draw in list(draws.items()):
                if draw.deadline <= now:
                    del draws[key]
                    self._wire.refuse(draw.request, self.replay.shared.items[name].describe(), "ReplayTimeoutError")
                else:
                    soonest = min(soonest, draw.deadline)
        return soonest
