"""A parameter server on a Reverb server of its own: one publication, the newest, for whoever asks. Extra: ``reverb``.

It is apart from replay's server, whose checkpoints hold up every call for seconds. Its one table is
called ``parameters/RUN/SENDER/PROCESS``: readers find it by a digest of the run's id (whoever reaches the
port can list tables, and an id may be a secret), see by the random sender that it was started anew, and
see by the table's count of inserts, which costs little to ask for, that there is a new publication.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentkit import ports
from agentkit.errors import ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.replay.reverb.library import BoundedCalls, quiet_stderr, reverb
from agentkit.scratch import make_scratch, remove_scratch

PING_SECONDS = 1
"""How long a server may take to say what it holds; Reverb wants whole seconds."""

ABANDON_SECONDS = 60.0
"""A request without an answer for this long is given up, and its thread with it: its host is gone."""

_PREFIX = "parameters"
_LOOPBACK = ("localhost", "127.", "[::1]", "::1", "unix:")


class Stamp(NamedTuple):
    """Identifies a publication: its parameter server's random name, and its number there, from 1."""

    sender: str
    number: int


class Publication(NamedTuple):
    """Holds one publication: plain data (JSON) and arrays."""

    stamp: Stamp
    header: dict[str, Any]
    arrays: list[np.ndarray]


class ReverbParameterServer:
    """Runs the server in this process, and publishes into it.

    Security: as for `ReverbReplay`, it listens to this machine alone unless `listen` says otherwise.
    Never fork a process that holds one.
    """

    def __init__(self, run_id: str, *, port: int | None = None, listen: str = "lo", timeout: float = 60.0):
        """Starts it, empty.

        Args:
            run_id: readers of another run do not read it.
            port: to serve on; None finds a free one. Readers outlive a restart on the same port.
            listen: the network device to listen on: "lo" is this machine alone, "all" every network.
            timeout: seconds that `put` waits.

        Raises:
            ConfigError: the port is taken, or the device is not this machine's.
        """
        self.sender = os.urandom(8).hex()
        self._table = f"{_PREFIX}/{_digest_of(run_id)}/{self.sender}/{_process()}"
        self._timeout = timeout
        self._calls = BoundedCalls()
        self._lock = threading.Lock()
        self._number = 0
        self._folder = make_scratch("parameter-server")  # Reverb makes one too, and leaves it behind
        try:
            self._server: Any = self._start(port, listen)
        except BaseException:
            remove_scratch(self._folder)
            raise
        self.port = int(self._server.port)
        self.address = f"localhost:{self.port}"
        self._client = reverb.Client(self.address)
        self._at_exit = _closer(weakref.ref(self))
        atexit.register(self._at_exit)

    def _start(self, port: int | None, listen: str) -> Any:
        if port is not None:
            ports.check_port_free(port)
        table = reverb.Table(
            name=self._table,
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        checkpointer = reverb.checkpointers.DefaultCheckpointer(os.fspath(self._folder))
        with quiet_stderr():
            server = reverb.Server([table], port=port, checkpointer=checkpointer)
        try:
            ports.restrict_to_device(server.port, listen, "The parameter server")
        except ConfigError:
            with quiet_stderr():
                server.stop()
            raise
        return server

    def put(self, header: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Stamp:
        """Replaces the publication.

        Args:
            header: for JSON.
            arrays: of numpy's bool, integer, float or complex dtypes.

        Raises:
            ReplayTimeoutError: the server did not take it within the timeout.
            ReplayClosedError: the parameter server is closed.
            ConfigError: an array that Reverb cannot carry.
        """
        with self._lock:
            if self._server is None:
                raise ReplayClosedError("This parameter server is closed.")
            stamp = Stamp(self.sender, self._number + 1)
            content = json.dumps({"sender": stamp.sender, "number": stamp.number, "header": dict(header)})
            data = [np.frombuffer(content.encode(), np.uint8), *arrays]
            try:
                self._calls(lambda: self._insert(data), self._timeout)
            except TimeoutError as error:
                raise ReplayTimeoutError(
                    f"The parameter server at {self.address} did not take a publication of "
                    f"{sum(a.nbytes for a in arrays)} bytes within {self._timeout:g} s."
                ) from error
            except TypeError as error:
                found = sorted({str(array.dtype) for array in arrays})
                raise ConfigError(f"Reverb cannot carry one of these dtypes: {found}. {error}") from error
            self._number = stamp.number
            return stamp

    def _insert(self, data: list[np.ndarray]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._client.insert(data, {self._table: 1.0})
            except RuntimeError:  # a connection of this process to an earlier server on the same port
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Ends the server. May be called twice."""
        with self._lock:
            server, self._server = self._server, None
            if server is None:
                return
            atexit.unregister(self._at_exit)
            self._calls.close()
            with quiet_stderr():
                server.stop()
            remove_scratch(self._folder)


class ParameterServerClient:
    """Reads the parameter server at an address. Thread-safe, one question at a time.

    Reverb's own sampling has no deadline, so each question runs in a daemon thread. One that is late
    stays under way while later calls return at once: who has other things to do loses no time with a
    server that is away.
    """

    def __init__(self, address: str, run_id: str, *, timeout: float = 5.0):
        """Makes a `ParameterServerClient`; the server may come later.

        Args:
            address: "host:port".
            run_id: the parameter server's.
            timeout: seconds that a call waits for the server, where it answered the last time.
        """
        self.address = address
        self._run = _digest_of(run_id)
        self._timeout = timeout
        self._client = reverb.Client(address)
        self._lock = threading.Lock()
        self._request: _Request | None = None
        self._silent = False
        self._trouble = ""  # what the question under way has met with so far
        self._loopback = address.startswith(_LOOPBACK)

    def get(self, known: Stamp | None = None) -> Publication | None:
        """Returns the publication; None if there is none, or it is the one with stamp `known`.

        Raises:
            ReplayClosedError: no server answers, or not in time, or not one of this run; it may later.
        """
        with self._lock:
            request = self._request
            if request is not None and request.age_seconds > ABANDON_SECONDS:
                request, self._client = None, reverb.Client(self.address)
            if request is None:
                client = self._client
                request = self._request = _Request(lambda: self._read(client, known))
            if not request.done.wait(0.0 if self._silent else self._timeout):
                self._silent = True
                raise ReplayClosedError(
                    f"The parameter server at {self.address} has not answered for {request.age_seconds:.1f} s. "
                    f"Is the learner alive, and the address right? {self._trouble}"
                )
            self._request = None
            if request.error is not None:
                self._silent = True
                raise ReplayClosedError(
                    f"The parameter server at {self.address} cannot be read: {request.error}"
                ) from (request.error)
            self._silent, self._trouble = False, ""
            publication = request.publication
            return None if publication is None or publication.stamp == known else publication

    def _read(self, client: Any, known: Stamp | None) -> Publication | None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._read_once(client, known)
            except (RuntimeError, reverb.errors.ReverbError) as error:  # also where it is started anew meanwhile
                self._trouble = str(error)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _read_once(self, client: Any, known: Stamp | None) -> Publication | None:
        tables = client.server_info(PING_SECONDS)
        table = self._find(tables)
        count = int(tables[table].rate_limiter_info.insert_stats.completed)
        if count == 0 or (known is not None and Stamp(table.split("/")[2], count) == known):
            return None
        sample = next(client.sample(table, emit_timesteps=False))
        try:
            content, *arrays = (column.reshape(column.shape[1:]) for column in sample.data)  # one step each
            told = json.loads(content.tobytes())
            return Publication(Stamp(str(told["sender"]), int(told["number"])), dict(told["header"]), arrays)
        except (ValueError, TypeError, LookupError) as error:
            raise RuntimeError(f"what is in it is no publication of this program ({error})") from error

    def _find(self, tables: Mapping[str, Any]) -> str:
        """Returns the name of the parameter server's table."""
        for name in tables:
            match name.split("/"):
                case [prefix, run, _, process] if prefix == _PREFIX and run == self._run:
                    if self._loopback and process != _process() and process.split("-")[0] == str(os.getpid()):
                        raise RuntimeError(
                            f"the server and this client both have process id {os.getpid()}, in different containers "
                            "that share a network, and Reverb would crash. Use an address other than loopback, or "
                            "one process namespace"
                        )
                    return name
        raise RuntimeError(f"expected the table {_PREFIX}/{self._run} of this run, found the tables {sorted(tables)}")


class _Request:
    """A question under way in a thread of its own."""

    def __init__(self, read: Callable[[], Publication | None]):
        self.done = threading.Event()
        self.publication: Publication | None = None
        self.error: Exception | None = None
        self._started = time.monotonic()
        threading.Thread(target=self._run, args=(read,), name="parameters", daemon=True).start()

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self._started

    def _run(self, read: Callable[[], Publication | None]) -> None:
        try:
            self.publication = read()
        except Exception as error:  # handed to the caller
            self.error = error
        self.done.set()


def _digest_of(run_id: str) -> str:
    if not run_id:
        raise ConfigError("Expected a run id, found an empty one.")
    return hashlib.sha256(run_id.encode()).hexdigest()[:24]


def _process() -> str:
    """Names this process among those of all machines and containers: its id, and a digest of whose id it is."""
    where = ""
    with contextlib.suppress(OSError):
        where += pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
        where += os.readlink("/proc/self/ns/pid")
    return f"{os.getpid()}-{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def _closer(server: weakref.ref[ReverbParameterServer]) -> Callable[[], None]:
    def close() -> None:
        alive = server()
        if alive is not None:
            alive.close()

    return close
