"""The client's end of a served replay: tables at an address, and samplers that may draw ahead."""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentkit import errors
from agentkit.errors import CheckpointError, ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.nests import make_builder
from agentkit.replay import base
from agentkit.replay.in_process.shared import STATE_FILE, SharedTables
from agentkit.replay.served.answers import as_replay_errors
from agentkit.replay.served.writer import AGE_SECONDS, ServedWriter
from agentkit.replay.table import Table
from agentkit.types import DrawnBatch, Nest, ReplaySample, SampleInfo, TableInfo
from agentkit.wire import Client, Keys, RefusedError, WireClosedError, WireTimeoutError

AHEAD = 3
"""Batches that a sampler which draws ahead has asked for and not handed out."""

UPDATES_UNDER_WAY = 4
"""New priorities that a replay which draws ahead has sent and not heard of; it waits before it sends more."""

_AHEAD_SECONDS = 30.0
_GRACE_SECONDS = 1.0
"""How much longer than asked for a batch may take to come."""

SAVE_SECONDS = 3600.0


class ServedReplay(base.Replay):
    """Writes to and draws from the tables of a `ReplayServer`, which may go and come back meanwhile.

    Args:
        tables: as the server was made of.
        address: the server's.
        keys: the run's; needed for tcp.
        default_timeout: seconds that writers and samplers wait unless they were given another.
        connect_timeout: seconds within which the server must answer now; None for `default_timeout`.
        draw_ahead: samplers ask for batches before they are asked for them, which counts as drawn; not those of
            tables whose items go when they are drawn. And new priorities go off without a wait for an answer: those
            of the last updates before `close` may be lost.
        find_address: where the server is now, None for unknown; asked while it is away.

    Raises:
        ReplayClosedError: no server answers at `address`.
        ConfigError: its tables are others.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        address: str,
        keys: Keys | None = None,
        *,
        default_timeout: float = 60.0,
        connect_timeout: float | None = None,
        draw_ahead: bool = False,
        find_address: Callable[[], str | None] | None = None,
    ):
        self.tables: Mapping[str, Table] = base.index_tables(tables)
        self.default_timeout = base.check_timeout(default_timeout, default_timeout)
        self._keys, self._find_address = keys, find_address
        self._draw_ahead = draw_ahead
        # Empty ones: they know what fits.
        self._model = SharedTables(self.tables, 0)
        self._parts: weakref.WeakSet[ServedWriter | ServedSampler] = weakref.WeakSet()
        self._pusher: threading.Thread | None = None
        patience = base.check_timeout(connect_timeout, self.default_timeout)
        self._wire = self._connect(address, patience)
        try:
            self._check_tables(json.loads(self._ask({"do": "tables"}, patience)))
        except BaseException:
            self.close()
            raise
        self._wire.patience = 2.0

    @property
    def address(self) -> str:
        """Returns where the server was found last."""
        return self._wire.address

    def _connect(self, address: str, patience: float = 2.0) -> Client:
        return Client(address, self._keys, patience, self._find_address)

    def _check_tables(self, found: list[dict[str, Any]]) -> None:
        theirs = {fields["name"]: fields for fields in found}
        for name, table in self.tables.items():
            if name not in theirs:
                raise errors.unknown_name(f"replay table of the server at {self.address}", name, theirs)
            for field, expected in json.loads(json.dumps(table.fingerprint())).items():
                if theirs[name].get(field) != expected:
                    raise ConfigError(
                        f"Table {name!r} of the server at {self.address} differs in {field}: expected {expected}, "
                        f"found {theirs[name].get(field)}. Make it from the same description in every process."
                    )

    def writer(self, history: int, *, timeout: float | None = None) -> ServedWriter:
        """Makes a writer; see `Replay.writer`."""
        self._check_open()
        seconds = base.check_timeout(timeout, self.default_timeout)
        history, wire = base.check_history(history), self._connect(self.address, seconds)
        writer = ServedWriter(self._model, wire, history, seconds, self._why_late)
        self._parts.add(writer)
        if self._pusher is None:
            self._pusher = threading.Thread(target=_push, args=(weakref.ref(self),), name="push-blocks", daemon=True)
            self._pusher.start()
        return writer

    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> ServedSampler:
        """Makes a sampler; see `Replay.sampler`."""
        self._check_open()
        description = self.table(table)
        description.check_batch(batch_size)
        ahead = AHEAD if self._draw_ahead and not description.max_times_sampled else 1
        seconds = base.check_timeout(timeout, self.default_timeout)
        sampler = ServedSampler(description, self._connect(self.address), int(batch_size), seconds, ahead)
        self._parts.add(sampler)
        return sampler

    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """Returns whether the rate limiter lets in `num_items` more than this replay's writers have under way."""
        self._check_open()
        self.table(table)
        writers = [part for part in list(self._parts) if isinstance(part, ServedWriter)]
        num_items += sum(writer.num_under_way(table) for writer in writers)
        return bool(self._ask({"do": "can_insert", "table": table, "num_items": num_items}))

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._wire.closed

    def push(self, seconds: float) -> None:
        """Sends what writers have begun so many seconds ago and not sent."""
        for part in list(self._parts):
            if isinstance(part, ServedWriter):
                part.push(seconds)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities ``[B]``; see `Replay`."""
        self._check_open()
        self.table(table)
        base.check_priorities(table, keys, priorities)
        if np.size(priorities):
            self._model.items[table].check_power(float(np.max(priorities)))
        body = {"do": "update", "table": table, "keys": np.asarray(keys), "priorities": np.asarray(priorities)}
        if self._draw_ahead:
            self._tell(body)
        else:
            self._ask(body)

    def info(self, table: str) -> TableInfo:
        """Returns the table's counters now."""
        self._check_open()
        self.table(table)
        return TableInfo(*self._ask({"do": "info", "table": table}))

    def count_as_sampled(self, table: str, num_sampled: int) -> None:
        """Sets the count of items drawn; see `Replay.count_as_sampled`."""
        self._check_open()
        self.table(table)
        self._ask({"do": "count", "table": table, "num_sampled": int(num_sampled)})

    def reset(self, table: str) -> None:
        """Removes every item and sets the counters to zero."""
        self._check_open()
        self.table(table)
        self._ask({"do": "reset", "table": table})

    def save(self, directory: pathlib.Path) -> None:
        """Lets the server write all contents into `directory`, which both must see.

        Raises:
            CheckpointError: it cannot be written to, or the server is on a machine with other disks.
        """
        self._check_open()
        self._ask({"do": "save", "directory": str(pathlib.Path(directory).absolute())}, SAVE_SECONDS)
        if not (pathlib.Path(directory) / STATE_FILE).is_file():
            raise CheckpointError(
                f"The replay server at {self.address} has saved its contents in {directory} of its own machine. Use a "
                "folder that both machines share."
            )

    def restore(self, directory: pathlib.Path) -> None:
        """Refuses: a server is restored by the process that runs it."""
        raise CheckpointError("A replay server is restored by the process that runs it, before it serves.")

    def close(self) -> None:
        """Disconnects; everyone who waits gets `ReplayClosedError`. May be called twice."""
        self._wire.close()
        for part in list(self._parts):
            part.abandon()

    def _check_open(self) -> None:
        if self._wire.closed:
            raise ReplayClosedError("This replay is closed; make a new one.")

    def _ask(self, body: Nest, timeout: float | None = None) -> Any:
        with as_replay_errors():
            return self._wire.ask(body, self.default_timeout if timeout is None else timeout)

    def _tell(self, body: Nest) -> None:
        """Sends what need not be answered at once; waits for answers only where many are under way."""
        deadline = time.monotonic() + self.default_timeout
        with as_replay_errors():
            self._wire.send(body)
            while self._wire.num_waiting > UPDATES_UNDER_WAY:
                if self._wire.receive(max(0.0, deadline - time.monotonic())) is None:
                    raise WireTimeoutError(
                        f"The server at {self.address} has taken no new priorities for {self.default_timeout:g} s."
                    )
            while self._wire.num_waiting and self._wire.receive(0.0) is not None:
                pass

    def _why_late(self, tables: Sequence[str], seconds: float) -> ReplayTimeoutError:
        found = [f"{self.info(name)}, {self.tables[name].rate_limiter}" for name in tables]
        return ReplayTimeoutError(
            f"Replay let no item in for {seconds:g} s: the rate limiter waits for samples ({'; '.join(found)}). The "
            "items stay queued. Sample in another thread or process, or give the limiter a greater error buffer."
        )


def _push(replay: weakref.ref[ServedReplay]) -> None:
    """Sends what writers have begun and not gone on with, as long as the replay is open and used."""
    while (alive := replay()) is not None and not alive.closed:
        alive.push(AGE_SECONDS)
        del alive
        time.sleep(AGE_SECONDS)


class ServedSampler(base.Sampler):
    """Draws batches from one table of a server; made by `ServedReplay.sampler`.

    Batches that were asked for and have not come when the timeout ends come to the next call. What was drawn and is
    lost with a connection comes over the next one, without being drawn again, for a minute at least; what is lost with
    its server does not.
    """

    def __init__(self, table: Table, wire: Client, batch_size: int, timeout: float, ahead: int):
        """Takes a connection of its own, `Replay.sampler`'s arguments, and how many batches to have asked for."""
        self._table, self._wire, self._batch_size = table, wire, batch_size
        self._timeout, self._ahead = timeout, ahead
        self._name = secrets.token_hex(8)
        self._build = make_builder(table.layout.data)
        self._come: collections.deque[list[np.ndarray]] = collections.deque()
        self._why_late = "it was not asked"
        self._lock = threading.RLock()

    def ready(self) -> bool:
        """Returns whether `__next__` would return a batch without waiting."""
        with self._lock:
            self._check_open()
            if self._ahead > 1:
                self._request()
                while self._receive(0.0) is not None:
                    pass
            elif not self._come:
                with as_replay_errors():
                    question = {"do": "can_sample", "table": self._table.name, "batch_size": self._batch_size}
                    number = self._wire.send(question)
                deadline = time.monotonic() + max(self._timeout, 10.0)
                while not self._come:  # A batch may come, too, which was asked for before.
                    found = self._receive(deadline - time.monotonic())
                    if found is not None and found[0] == number:
                        return bool(found[1])
                    if time.monotonic() > deadline:
                        raise ReplayTimeoutError(f"The server at {self._wire.address} does not answer.")
            return bool(self._come)

    def __next__(self) -> DrawnBatch:
        """Returns the next batch; see `Sampler`."""
        with self._lock:
            self._check_open()
            deadline = time.monotonic() + self._timeout
            while not self._come:
                self._request()
                # The server says itself when the time is up, and why; it may be at work.
                left = deadline - time.monotonic() + (_GRACE_SECONDS if self._ahead == 1 else 0.0)
                if self._receive(left) is None and time.monotonic() >= deadline:
                    raise ReplayTimeoutError(
                        f"Table {self._table.name!r} gave no batch of {self._batch_size} for {self._timeout:g} s "
                        f"({self._why_late}). Is anyone writing? Insert more, or wait longer."
                    )
            leaves = self._come.popleft()
            if self._ahead > 1:
                self._request()
        num_info = 1 + len(SampleInfo._fields)
        sample = ReplaySample(SampleInfo(*leaves[1:num_info]), self._build(iter(leaves[num_info:])))
        return DrawnBatch(leaves[0], sample)

    def _request(self) -> None:
        """Asks for as many batches as are to be under way."""
        body = {"do": "sample", "sampler": self._name, "table": self._table.name, "batch_size": self._batch_size}
        while self._wire.num_waiting + len(self._come) < self._ahead:
            wait = self._timeout if self._ahead == 1 else _AHEAD_SECONDS
            with as_replay_errors():
                self._wire.send({**body, "oldest_waiting": self._wire.oldest_waiting, "wait": wait})

    def _receive(self, timeout: float) -> tuple[int, Any] | None:
        """Takes in an answer; returns it, or None if there is none, or none but that there is no batch yet."""
        try:
            with as_replay_errors():
                found = self._wire.receive(max(0.0, timeout))
        except ReplayTimeoutError as error:
            self._why_late = str(error)
            return None
        if found is not None and isinstance(found[1], list):  # Else it says whether there is a batch.
            self._come.append(found[1])
        return found

    def _check_open(self) -> None:
        if self._wire.closed:
            raise ReplayClosedError("This sampler is closed; make a new one with replay.sampler(...).")

    def close(self) -> None:
        """Stops sampling; takes back what was asked for and not given, if nobody waits for it here."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._wire.closed:
                    with contextlib.suppress(errors.AgentkitError):
                        self._receive(0.0)  # Hears whether the server is there.
                    if self._wire.connected:
                        with contextlib.suppress(WireClosedError, WireTimeoutError, RefusedError):
                            self._wire.ask({"do": "cancel", "sampler": self._name}, 1.0)
            finally:
                self._lock.release()
        self.abandon()

    def abandon(self) -> None:
        """Disconnects, from any thread."""
        self._wire.close()
