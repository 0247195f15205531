"""Replay tables on a Reverb server, in this process or at an address.

Extra: ``reverb``. See Cassirer et al. 2021, "Reverb: A Framework For Experience Replay".
"""

from __future__ import annotations

import atexit
import math
import os
import pathlib
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from agentkit import ports
from agentkit.errors import (
    CheckpointError,
    ConfigError,
    ReplayClosedError,
    ReplayTimeoutError,
    unknown_name,
)
from agentkit.replay.base import (
    FIRST_PRIORITY,
    Replay,
    Sampler,
    check_history,
    check_priorities,
    check_timeout,
    index_tables,
)
from agentkit.replay.reverb import checkpoint
from agentkit.replay.reverb.item_plans import MIN_IN_FLIGHT, check_power, group_tables
from agentkit.replay.reverb.library import BoundedCalls, quiet_stderr, reverb, sampling
from agentkit.replay.reverb.sampler import ReverbSampler
from agentkit.replay.reverb.streams import make_pieces, make_writer
from agentkit.replay.reverb.tables import describe, is_free, make_table, table_info
from agentkit.replay.reverb.writer import ReverbWriter
from agentkit.replay.table import Table
from agentkit.scratch import make_scratch, remove_scratch
from agentkit.types import TableInfo

PING_SECONDS = 2
"""How long a server may take to say that it is there."""

CHECKPOINT_SECONDS = 600.0
"""How long a server may take to write its contents."""

_T = TypeVar("_T")


class ReverbReplay(Replay):
    """Keeps the tables on a Reverb server of this process, or on one at an address.

    What differs from `InProcessReplay`: several processes and machines can write and read; items are
    confirmed a little later than they are created (`Writer.flush` waits for it); a sampler draws one
    batch ahead (some where nothing limits the rate), which a rate limit and `TableInfo.num_sampled`
    count as sampled; and nothing is deterministic or `resumable`: what a restored server holds is what
    was saved, but the random choices are new and an unfinished episode is lost. The largest priority, which new items
    get, is that of the updates and items by this object: where another process gives some, `largest_priorities` wants
    telling.

    Security: Reverb has neither authentication nor encryption, and whoever reaches its port can crash
    its clients. So a server of this class listens to this machine alone, unless `listen` says otherwise.

    Never fork a process that holds one: Reverb's threads do not survive it. Start processes with
    `spawn`.

    Attributes:
        largest_priorities: that this object gave, by table, and 1 at least; what its writers' new items get.
    """

    resumable = False
    _admit: Callable[[str, float], None] | None = None  # for writers
    _server_limits = True  # whether the server keeps the rate limits

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        address: str | None = None,
        port: int | None = None,
        listen: str = "lo",
        default_timeout: float = 60.0,
        connect_timeout: float | None = None,
        draw_ahead: bool = False,
        checkpoint_directory: pathlib.Path | str | None = None,
    ):
        """Starts a server, or finds the one at `address`.

        Args:
            tables: descriptions; with `address`, those of the server (it may have more).
            address: "host:port" of a server that another process started with the same tables; waited
                for up to `connect_timeout`.
            port: to serve on; None finds a free one.
            listen: the network device to listen on: "lo" is this machine alone, "wg0" or "eth1" one
                network, "all" every network.
            default_timeout: seconds.
            connect_timeout: seconds that the server at `address` may take to answer; None for
                `default_timeout`.
            draw_ahead: samplers draw some batches more than they are asked for, where a rate limit lets them:
                several times faster across processes, and less exact. What was drawn ahead counts as
                sampled, and is lost when this process dies. For a learner of its own process.
            checkpoint_directory: where the server writes a checkpoint before `save` links it to its
                place; best on the same file system as that. None is the system's temporary directory.

        Raises:
            ConfigError: settings that contradict each other, a port that is taken, or a server at
                `address` with other tables.
            ReplayClosedError: no server answers at `address`.
        """
        self.tables = index_tables(tables)
        self.default_timeout = check_timeout(default_timeout, default_timeout)
        self.largest_priorities: dict[str, float] = dict.fromkeys(self.tables, FIRST_PRIORITY)
        self._groups = group_tables(self.tables)
        self._draw_ahead = draw_ahead
        self._closed = False
        self._writers: weakref.WeakSet[ReverbWriter] = weakref.WeakSet()
        self._samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()
        self._save_lock = threading.Lock()
        self._calls = BoundedCalls()
        self._server: Any = None
        self._served: dict[str, Any] = {}  # the server's own tables, where it can be asked at no cost
        self._folder: pathlib.Path | None = None
        self._listen = listen
        self._port = port
        if address is not None:
            if port is not None or checkpoint_directory is not None:
                raise ConfigError("port and checkpoint_directory belong to a server; with address there is none here.")
            self._connect(address, check_timeout(connect_timeout, self.default_timeout))
        else:
            self._serve(checkpoint_directory)
        self._at_exit = _closer(weakref.ref(self))
        atexit.register(self._at_exit)

    # --- the server ------------------------------------------------------------------------------

    def _serve(self, checkpoint_directory: pathlib.Path | str | None) -> None:
        self._folder = make_scratch("reverb", checkpoint_directory)
        self._root = self._folder / "server"  # Reverb deletes whatever else it finds in there
        try:
            self._start()
        except BaseException:
            remove_scratch(self._folder)
            raise

    def _start(self) -> None:
        if self._port is not None:
            ports.check_port_free(self._port)
        self._root.mkdir(exist_ok=True)
        tables = [self._make_table(table) for table in self.tables.values()]
        checkpointer = reverb.checkpointers.DefaultCheckpointer(os.fspath(self._root))
        with quiet_stderr():
            self._server = reverb.Server(tables, port=self._port, checkpointer=checkpointer)
        try:
            ports.restrict_to_device(self._server.port, self._listen, "The Reverb server")
        except ConfigError:
            self._stop()
            raise
        # A server that loads a checkpoint makes tables of its own, and we have no way to them but the client.
        self._served = {} if any(self._root.iterdir()) else {table.name: table for table in tables}
        self.address = f"localhost:{self._server.port}"
        self._client = reverb.Client(self.address)

    def _make_table(self, table: Table) -> Any:
        return make_table(table)

    def _stop(self) -> None:
        server, self._server, self._served = self._server, None, {}
        if server is not None:
            with quiet_stderr():
                server.stop()

    def _connect(self, address: str, timeout: float) -> None:
        """Waits for the server at `address`, and compares its tables with ours."""
        self.address = address
        self._client = reverb.Client(address)
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._client.server_info(PING_SECONDS)
                break
            except (RuntimeError, reverb.errors.ReverbError) as error:
                if time.monotonic() > deadline:
                    raise ReplayClosedError(
                        f"No Reverb server answers at {self.address} ({timeout:g} s). Start it, "
                        "or correct the address (host:port)."
                    ) from error
                time.sleep(0.1)
        for table in self.tables.values():
            if table.name not in found:
                raise unknown_name(f"replay table of the server at {self.address}", table.name, found)
            ours, theirs = describe(make_table(table).info), describe(found[table.name])
            if ours != theirs:
                raise ConfigError(
                    f"Table {table.name!r} of the server at {self.address} differs: expected {ours}, "
                    f"found {theirs}. Make it from the same description in every process."
                )

    # --- writing and sampling --------------------------------------------------------------------

    def writer(self, history: int, *, timeout: float | None = None) -> ReverbWriter:
        """Implements `Replay.writer`."""
        self._check_open()
        writer = ReverbWriter(
            self._groups,
            check_history(history),
            make_writer=lambda chunk_lengths, keep: make_writer(self.address, chunk_lengths, keep),
            is_closed=lambda: self._closed,
            why_late=self._why_insert_late,
            timeout=check_timeout(timeout, self.default_timeout),
            largest_priorities=self.largest_priorities,
            admit=self._admit,
        )
        self._writers.add(writer)
        return writer

    def sampler(self, table: str, batch_size: int, *, timeout: float | None = None) -> Sampler:
        """Implements `Replay.sampler`."""
        self._check_open()
        description = self.table(table)
        description.check_batch(batch_size)
        sampling()  # Not in the sampler's thread.
        # What goes when it is drawn is not drawn ahead: it would be lost with the learner, and older when it is used.
        streams = (self._draw_ahead and description.max_times_sampled == 0) or is_free(description)
        sampler = ReverbSampler(
            description,
            int(batch_size),
            make_pieces=lambda: make_pieces(self.address, description, int(batch_size), streams),
            can_sample=lambda num_items: self._can_sample(description, num_items),
            why_late=lambda seconds: self._why_sample_late(description, seconds),
            timeout=check_timeout(timeout, self.default_timeout),
            streams=streams,
        )
        self._samplers.add(sampler)
        return sampler

    def can_insert(self, table: str, num_items: int = 1) -> bool:
        """Implements `Replay.can_insert`. Counts the items that this replay's writers have on their way."""
        self._check_open()
        description = self.table(table)
        writers = [writer for writer in list(self._writers) if writer.num_unconfirmed(table)]
        under_way = sum(writer.num_unconfirmed(table) for writer in writers)
        if self._server is not None and under_way >= MIN_IN_FLIGHT and all(writer.try_confirm() for writer in writers):
            under_way = 0  # Who asks takes turns with a learner in this process, which should see what was written.
        if self._lets_in(description, num_items + under_way):
            return True
        # Too near the limit for a guess: ask again when all has arrived.
        if under_way == 0 or not all(writer.try_confirm() for writer in writers):
            return False
        return self._lets_in(description, num_items)

    def _lets_in(self, table: Table, num_items: int) -> bool:
        served = self._served.get(table.name)
        if served is not None:
            return served.can_insert(num_items)
        info = self._remote_info(table.name)
        return table.rate_limiter.can_insert(
            num_items, size=info.size, inserted=info.num_inserted, sampled=info.num_sampled
        )

    def _can_sample(self, table: Table, num_items: int) -> bool:
        served = self._served.get(table.name)
        if served is not None:
            return served.can_sample(num_items)
        if self._closed:
            return False
        info = self._remote_info(table.name)
        return table.rate_limiter.can_sample(
            num_items, size=info.size, inserted=info.num_inserted, sampled=info.num_sampled
        )

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Implements `Replay.update_priorities`."""
        self._check_open()
        description = self.table(table)
        check_priorities(table, keys, priorities)
        if len(keys) == 0:
            return
        check_power(description, float(np.max(priorities)))
        self.largest_priorities[table] = max(self.largest_priorities[table], float(np.max(priorities)))
        updates = dict(zip(np.asarray(keys).tolist(), np.asarray(priorities, np.float64).tolist(), strict=True))
        self._ask(lambda: self._client.mutate_priorities(table, updates), f"updating priorities of {table!r}")

    # --- state -----------------------------------------------------------------------------------

    def info(self, table: str) -> TableInfo:
        """Implements `Replay.info`."""
        self._check_open()
        self.table(table)
        served = self._served.get(table)
        return self._remote_info(table) if served is None else table_info(served.info)

    def _remote_info(self, table: str) -> TableInfo:
        try:
            return table_info(self._client.server_info(math.ceil(max(1.0, self.default_timeout)))[table])
        except (RuntimeError, reverb.errors.ReverbError) as error:
            raise ReplayClosedError(f"The Reverb server at {self.address} does not answer: {error}") from error

    def reset(self, table: str) -> None:
        """Implements `Replay.reset`."""
        self._check_open()
        self.table(table)
        self.largest_priorities[table] = FIRST_PRIORITY
        self._ask(lambda: self._client.reset(table), f"resetting table {table!r}")

    def save(self, directory: pathlib.Path) -> None:
        """Implements `Replay.save`. The server keeps its random state to itself; all its contents are saved.

        Raises:
            CheckpointError: the server could not write, or writes to another machine's disk.
        """
        self._check_open()
        for writer in list(self._writers):  # What is still on its way belongs to this instant.
            writer.try_confirm()
        with self._save_lock:
            try:
                path = self._checkpoint()
            except RuntimeError as error:
                raise CheckpointError(f"Reverb could not write its contents: {error}") from error
            checkpoint.write(pathlib.Path(path), directory, self.tables, self._handed_out(), self.largest_priorities)

    def _checkpoint(self) -> str:
        """Asks the server to write, and returns where; once more if it answers after all.

        This call alone fails at once where a connection was lost, or took too long: others wait for the next one.
        """
        with quiet_stderr():
            try:
                return self._call(self._client.checkpoint, "saving", CHECKPOINT_SECONDS)
            except RuntimeError:
                if self._silent() is not None:
                    raise
            return self._call(self._client.checkpoint, "saving", CHECKPOINT_SECONDS)

    def restore(self, directory: pathlib.Path) -> None:
        """Implements `Replay.restore`. Starts the server anew; on failure it is empty.

        Raises:
            CheckpointError: unreadable, of other tables, or this replay has no server of its own, or
                writers and samplers already.
        """
        self._check_open()
        if self._folder is None:
            raise CheckpointError("A server at an address is restored by the process that runs it.")
        if len(self._writers) or len(self._samplers):
            raise CheckpointError("Restore replay before any writer or sampler is made.")
        checkpoint.check(directory, self.tables, self._server_limits)
        self._stop()
        shutil.rmtree(self._root, ignore_errors=True)
        try:
            checkpoint.read(directory, self._root)
            self._start()
            self.largest_priorities |= checkpoint.largest_priorities(directory)
        except (RuntimeError, ValueError, OSError) as error:
            shutil.rmtree(self._root, ignore_errors=True)
            self._start()
            raise CheckpointError(f"Reverb cannot read the checkpoint in {directory}: {error}") from error

    def _handed_out(self) -> Mapping[str, int]:
        """Returns the samples that learners got by table, where the server counts others and holds nobody back."""
        return {}

    def close(self) -> None:
        """Implements `Replay.close`. Samplers end first, then writers, then the server."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        for sampler in list(self._samplers):
            sampler.close()
        for writer in list(self._writers):
            writer.abandon()
        self._calls.close()
        self._stop()
        if self._folder is not None:
            remove_scratch(self._folder)

    # --- waiting ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayClosedError("This replay is closed.")

    def _call(self, function: Callable[[], _T], what: str, timeout: float | None = None) -> _T:
        """Calls what Reverb gives no deadline for."""
        seconds = check_timeout(timeout, self.default_timeout)
        try:
            return self._calls(function, seconds)
        except TimeoutError as error:
            raise self._silent() or ReplayTimeoutError(
                f"The Reverb server at {self.address} was not done with {what} within {seconds:g} s."
            ) from error

    def _ask(self, function: Callable[[], object], what: str) -> None:
        """Calls what only a lost connection makes fail: Reverb waits for a server that is away when a call begins."""
        try:
            self._call(function, what)
        except ReplayClosedError:
            raise
        except RuntimeError as error:
            raise ReplayClosedError(f"The Reverb server at {self.address} was lost while {what}: {error}") from error

    def _silent(self) -> ReplayClosedError | None:
        """Returns an error if the server does not answer."""
        try:
            self._client.server_info(PING_SECONDS)
        except (RuntimeError, reverb.errors.ReverbError) as error:
            return ReplayClosedError(f"The Reverb server at {self.address} does not answer: {error}")
        return None

    def _why_insert_late(self, names: str, seconds: float) -> Exception:
        return self._silent() or ReplayTimeoutError(
            f"The rate limit of table {names} did not let an item in within {seconds:g} s: nobody samples. "
            "The items stay queued. Run a learner, raise the error buffer, or ask can_insert before a step."
        )

    def _why_sample_late(self, table: Table, seconds: float) -> Exception:
        silent = self._silent()
        if silent is not None:
            return silent
        info = self.info(table.name)
        return ReplayTimeoutError(
            f"Table {table.name!r} gave no batch within {seconds:g} s. It holds {info.size} items; "
            f"{info.num_inserted} were inserted and {info.num_sampled} sampled under {table.rate_limiter}. "
            "Insert more, or wait longer."
        )


def _closer(replay: weakref.ref[ReverbReplay]) -> Callable[[], None]:
    def close() -> None:
        alive = replay()
        if alive is not None:
            alive.close()

    return close
