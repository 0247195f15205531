"""The client's end of the wire: asks a server that may be slow, go, and come back."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from agentkit.errors import AgentkitError
from agentkit.ports import raise_descriptor_limit
from agentkit.types import Nest
from agentkit.wire.keys import Keys
from agentkit.wire.message import LONGEST_FRAME, decode, encode

SILENT_SECONDS = 10.0
"""A connection whose other end has been silent for this long (a vanished host, a stopped process) is given up."""

LOOK_SECONDS = 5.0
"""How often a client whose server is away asks where it is now; the first time before its patience ends."""

_SLICE_SECONDS = 0.1
"""How often one who waits looks whether the client was closed."""

_RETRY_SECONDS = 0.2
"""How long it takes at most to see that a server has come back."""

_STRANGERS, _PROMPT_SECONDS = 3, 1.0
"""So many connections in a row that end within so long of being made, without a handshake, are no accident."""


class WireClosedError(AgentkitError, ConnectionError):
    """Says that no server answers, or that this client was closed."""


class WireTimeoutError(AgentkitError, TimeoutError):
    """Says that a server that is there did not answer in time."""


class RefusedError(AgentkitError, RuntimeError):
    """Says why the server refused a request; `kind` is for programs."""

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


def _read(answer: dict[str, Any]) -> Nest:
    if "error" in answer:
        raise RefusedError(answer["error"], answer["kind"])
    return answer["value"]


def _open_context() -> zmq.SyncContext:
    """Returns the context of this process, also after a fork, with room for an actor of many environments.

    Each environment has a client, and each client takes three sockets, of which libzmq gives a context 1,023.
    """
    raise_descriptor_limit()
    context: zmq.SyncContext = zmq.Context.instance()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))  # Of effect before its first socket.
    return context


class Client:
    """Connects to a server; goes on when that comes back.

    What was asked and not answered is asked again over each new connection, in order: a server may meet a request
    twice, and takes care where that matters. One thread at a time; `close` may come from any.
    Made in the process that uses it, after any fork.

    Args:
        address: as `Server.address` has it.
        keys: the run's; needed for tcp.
        patience: seconds for which the server may be away before `receive` says so.
        find_address: where the server is now, None for unknown: it may come back elsewhere. Everyone who uses this
            client waits for it, so it returns soon.
    """

    def __init__(
        self,
        address: str,
        keys: Keys | None = None,
        patience: float = 2.0,
        find_address: Callable[[], str | None] | None = None,
    ):
        self.address = address
        self.patience = patience
        self._find_address = find_address
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._number = 0
        self._waiting: dict[int, list[bytes | memoryview]] = {}  # Asked and not answered.
        self._unsent: list[int] = []
        self._refused: list[dict[str, Any]] = []  # What came so while another answer was waited for.
        self._connected = False
        self._num_failed = 0  # Handshakes, in a row and promptly.
        self._met = 0.0  # When a connection was made last.
        self._reconnect_at = math.inf
        self._away_since = time.monotonic()
        self._look_at = self._away_since + self._look_seconds()
        context = _open_context()
        self._socket: zmq.SyncSocket = context.socket(zmq.DEALER)
        self._socket.routing_id = secrets.token_hex(8).encode()  # The same over each connection.
        self._socket.linger = 0
        self._socket.immediate = True  # A lost connection takes along what it had not sent: all is sent anew.
        self._socket.maxmsgsize = LONGEST_FRAME
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = 20, int(_RETRY_SECONDS * 1000)
        self._socket.heartbeat_ivl = int(SILENT_SECONDS * 1000 / 4)
        self._socket.heartbeat_timeout = self._socket.heartbeat_ttl = int(SILENT_SECONDS * 1000)
        if keys is not None:
            self._socket.curve_serverkey = keys.server_public
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.client_public, keys.client_secret
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(address)

    @property
    def num_waiting(self) -> int:
        """Returns how many requests are not answered yet."""
        return len(self._waiting)

    @property
    def oldest_waiting(self) -> int:
        """Returns the number of the oldest request that is not answered yet; of the next one, where all are."""
        return next(iter(self._waiting), self._number + 1)

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._closed

    @property
    def connected(self) -> bool:
        """Returns whether the server was there when it was last looked for."""
        return self._connected

    @property
    def is_stranger(self) -> bool:
        """Returns whether somebody listens at the address who is no server with these keys, as `ask` has found."""
        return self._num_failed >= _STRANGERS

    def forget(self) -> None:
        """Waits no longer for what was asked so far."""
        with self._lock:
            self._waiting.clear()
            self._unsent.clear()
            self._refused.clear()

    def ask(self, body: Nest, timeout: float) -> Nest:
        """Sends a request and returns its answer; the next `receive` raises the refusal of another that comes first.

        Raises:
            RefusedError: the server refuses it.
            WireTimeoutError: no answer within `timeout` seconds.
            WireClosedError: the server is away for `patience` seconds, or this client was closed.
        """
        deadline = time.monotonic() + timeout
        with self._locked(timeout):
            self._check_open()
            self._follow()
            self._num_failed = 0  # What came before was not seen promptly.
            number = self.send(body)
            try:
                while (found := self._receive(deadline - time.monotonic())) is not None:
                    if found[0] == number:
                        return _read(found[1])
                    if "error" in found[1]:
                        self._refused.append(found[1])
            finally:
                self._waiting.pop(number, None)
            if not self._connected:
                raise self._away(timeout)
            raise WireTimeoutError(f"The server at {self.address} gave no answer within {timeout:g} s.")

    @contextlib.contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            raise WireTimeoutError(f"Another thread has waited for {self.address} for {timeout:g} s.")
        try:
            yield
        finally:
            self._lock.release()

    def send(self, body: Nest) -> int:
        """Sends a request, at once or as soon as the server is there; returns its number."""
        with self._lock:
            self._check_open()
            self._number += 1
            self._waiting[self._number] = encode(self._number, body)
            self._unsent.append(self._number)
            if not self._connected:
                self._follow()
            self._send_unsent()
            return self._number

    def receive(self, timeout: float) -> tuple[int, Nest] | None:
        """Returns the number and the answer of any request that waits; None if none comes within `timeout` seconds.

        Raises:
            RefusedError: the server refuses one.
            WireClosedError: the server is away for `patience` seconds, or this client was closed.
        """
        with self._lock:
            if self._refused:
                _read(self._refused.pop(0))
            found = self._receive(timeout)
        return None if found is None else (found[0], _read(found[1]))

    def _receive(self, timeout: float) -> tuple[int, dict[str, Any]] | None:
        deadline = time.monotonic() + timeout
        while True:
            self._check_open()
            left = deadline - time.monotonic()
            sends = self._unsent and self._connected
            self._poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if sends else 0))
            ready = dict(self._poller.poll(int(max(0.0, min(left, _SLICE_SECONDS) * 1000))))
            if self._monitor in ready:
                self._follow()
            if time.monotonic() >= self._reconnect_at:
                self._follow()
                if not self._connected:
                    self._reconnect(self.address)
            if self._find_address is not None and not self._connected and time.monotonic() >= self._look_at:
                self._look_for_server(self._find_address)
            if self._unsent:
                self._send_unsent()
            if ready.get(self._socket, 0) & zmq.POLLIN:
                number, answer = decode(self._socket.recv_multipart(copy=False))
                if self._waiting.pop(number, None) is None:
                    continue  # It was asked twice, or is not waited for any more.
                return number, answer
            away = 0.0 if self._connected else time.monotonic() - self._away_since
            if away >= self.patience and timeout - left >= min(timeout, _RETRY_SECONDS + _SLICE_SECONDS):
                raise self._away(away)
            if left <= 0:
                return None

    def _away(self, seconds: float) -> WireClosedError:
        return WireClosedError(f"No server of this run answers at {self.address} (waited {seconds:.1f} s).")

    def _follow(self) -> None:
        """Learns of all connections that were made or lost; over a new one, what a lost one took along is sent anew."""
        while int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            self._take_event(recv_monitor_message(self._monitor)["event"], time.monotonic())

    def _take_event(self, event: int, now: float) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._met, self._reconnect_at = now, math.inf
            return
        if event == zmq.EVENT_DISCONNECTED:
            self._reconnect_at = now + _RETRY_SECONDS
        is_prompt = not self._connected and now - self._met < _PROMPT_SECONDS
        self._num_failed = self._num_failed + 1 if is_prompt and event == zmq.EVENT_DISCONNECTED else 0
        is_made = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if is_made:
            self._socket.get(zmq.EVENTS)  # Makes the socket itself learn of the connection, and forget the last one.
            self._unsent = list(self._waiting)
        if self._connected != is_made:
            self._connected = is_made
            self._away_since, self._look_at = now, now + self._look_seconds()

    def _reconnect(self, address: str) -> None:
        """Connects where libzmq does not do so again: it gives up for good who does not speak its protocol."""
        self._reconnect_at = math.inf
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self.address)
        try:
            self._socket.connect(address)
        except zmq.ZMQError:  # It is none that this machine can connect to: who was there may come back.
            self._socket.connect(self.address)
        else:
            self.address = address

    def _look_seconds(self) -> float:
        """Returns after how long an absence to look for the server: before patience ends, it may have moved."""
        return min(LOOK_SECONDS, self.patience / 2)

    def _look_for_server(self, find_address: Callable[[], str | None]) -> None:
        """Connects to where the server is now, unless it has come back meanwhile to where it was."""
        self._follow()
        if self._connected:
            return
        address = find_address()
        self._follow()
        if not self._connected and address is not None and address != self.address:
            self._reconnect(address)
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _send_unsent(self) -> None:
        if not self._connected:
            return  # For a moment after a connection was lost the socket takes what is sent, and it goes nowhere.
        try:
            while self._unsent:
                parts = self._waiting.get(self._unsent[0])
                if parts is not None:
                    self._socket.send_multipart(parts, copy=False, flags=zmq.NOBLOCK)
                del self._unsent[0]
        except zmq.Again:
            return  # It is away, or has its hands full.

    def _check_open(self) -> None:
        if self._closed:
            raise WireClosedError(f"This connection to {self.address} was closed.")
        if self._pid != os.getpid():
            raise WireClosedError("This connection was made before a fork, in another process. Make one here.")

    def close(self) -> None:
        """Disconnects; who waits gets `WireClosedError`. May be called twice."""
        self._closed = True
        if self._pid != os.getpid():
            return  # All is the parent's; a thread of it may have held the lock at the fork, which nobody here frees.
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
                self._socket.close(linger=0)

    def __del__(self) -> None:
        if hasattr(self, "_monitor"):  # Else it was never connected.
            self.close()
