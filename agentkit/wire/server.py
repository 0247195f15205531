"""The server's end of the wire: takes requests from many clients, in the thread that asks for them.

An address is ``ipc://`` and a path in a folder of mode 700, on one host; or ``tcp://``, with the run's keys. There
nobody without the client's key gets as far as a message: what a stranger can take is a connection for
`HANDSHAKE_SECONDS`, and `LONGEST_FRAME` of memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import stat
import time
from typing import NamedTuple

import zmq
from zmq.utils import z85

from agentkit.errors import ConfigError
from agentkit.ports import device_address, raise_descriptor_limit
from agentkit.types import Nest
from agentkit.wire.keys import Keys
from agentkit.wire.message import LONGEST_FRAME, PART_BYTES, MessageError, decode, encode

HANDSHAKE_SECONDS = 5.0
"""How long a connection may take to show its key."""

LONGEST_PATH = 100
"""Of a socket's file, in bytes: the system's limit is 108 on Linux, 104 on macOS."""

_DOMAIN = b"agentkit"

_NAMELESS = b"\0"
"""What a connection's name begins with whose client has made another one, which has the client's name now."""


class Request(NamedTuple):
    """Holds what a client asks for.

    Attributes:
        sender: the client, over whichever connection it came: it is answered over the newest one.
        number: the client's.
        body: a nest of arrays and plain values.
    """

    sender: bytes
    number: int
    body: Nest


class Server:
    """Listens at an address. Not thread-safe; made in the process that uses it, after any fork.

    Attributes:
        address: for clients; of ``tcp://HOST:*`` the port is filled in.
        num_dropped: messages that were none of this wire's.
    """

    def __init__(self, address: str, keys: Keys | None = None):
        """Listens at once.

        Args:
            address: ``ipc://PATH`` or ``tcp://HOST:PORT``, port * for a free one.
            keys: the run's; needed for tcp.

        Raises:
            ConfigError: the address cannot be had, or strangers could reach it.
        """
        _check_address(address, keys)
        raise_descriptor_limit()
        self.num_dropped, self._sent = 0, -math.inf
        self._context = zmq.Context()  # Its own: it has one doorkeeper, `_admit`.
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        try:
            self._socket.linger = 2000
            self._socket.router_handover = True  # A client's next connection takes the place of the one before it.
            self._socket.maxmsgsize = LONGEST_FRAME
            self._socket.handshake_ivl = int(HANDSHAKE_SECONDS * 1000)
            self._socket.backlog = 1024
            self._door = None if keys is None else self._guard(keys)
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"{address} cannot be listened at: {error}. Choose another address.") from error
        self.address = str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._poller.register(self._socket, zmq.POLLIN)

    def _guard(self, keys: Keys) -> zmq.SyncSocket:
        """Lets the run's client key in, and no other (ZAP, RFC 27)."""
        self._member = z85.decode(keys.client_public)
        door = self._context.socket(zmq.REP)
        door.linger = 0
        door.bind("inproc://zeromq.zap.01")
        self._poller.register(door, zmq.POLLIN)
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.server_secret
        self._socket.zap_domain = _DOMAIN
        self._socket.zap_enforce_domain = True
        return door

    def _admit(self, door: zmq.SyncSocket) -> None:
        version, number, _, _, _, mechanism, *credentials = door.recv_multipart()
        known = mechanism == b"CURVE" and credentials == [self._member]
        door.send_multipart([version, number, *((b"200", b"", b"member") if known else (b"400", b"", b"")), b""])

    def receive(self, timeout: float) -> Request | None:
        """Returns the next request; None if none comes within `timeout` seconds.

        Dropped are what is none, and what came by a client's last connection, which it has sent again by the next.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(int(left * 1000)))
            if self._door is not None and self._door in ready:
                self._admit(self._door)
            if self._socket in ready:
                sender, *parts = self._socket.recv_multipart(copy=False)
                try:
                    request = Request(sender.bytes, *decode(parts))
                    if not request.sender.startswith(_NAMELESS):
                        return request
                except MessageError as error:
                    self.num_dropped += 1
                    if error.number is not None:
                        self.refuse(Request(sender.bytes, error.number, None), str(error), "message")
            elif left == 0.0:
                return None

    def answer(self, request: Request, body: Nest) -> None:
        """Answers a request; what a client does not wait for any more is dropped on the way.

        Raises:
            SpecError: `body` is no nest of arrays and plain values.
        """
        self._send(request, {"value": body})

    def refuse(self, request: Request, why: str, kind: str) -> None:
        """Lets the client raise `RefusedError`.

        Args:
            request: which one.
            why: for people.
            kind: for programs.
        """
        self._send(request, {"error": why[: PART_BYTES // 16], "kind": kind})

    def _send(self, request: Request, body: Nest) -> None:
        parts = encode(request.number, body)
        self._sent = time.monotonic()
        with contextlib.suppress(zmq.Again):  # A client that takes no answers: its loss.
            self._socket.send_multipart([request.sender, *parts], copy=False, flags=zmq.NOBLOCK)

    def close(self, parting_seconds: float = 0.0) -> None:
        """Ends all connections; answers that are on their way have 2 s. May be called twice.

        Args:
            parting_seconds: to stay after the last answer, where it must be read: a client's libzmq forgets what it
                has received and nobody has read when the connection ends, and a client that cannot ask again lacks it.
        """
        time.sleep(max(0.0, self._sent + parting_seconds - time.monotonic()))
        self._context.destroy(linger=2000)


def private_address(folder: pathlib.Path, name: str) -> str | None:
    """Returns an ipc address in a private `folder`; None where its path would be too long for a socket."""
    path = os.fspath(folder.absolute() / name)
    return f"ipc://{path}" if len(os.fsencode(path)) <= LONGEST_PATH else None


def listen_address(device: str, port: int | None = None) -> str:
    """Returns the tcp address to listen at on a network device ("lo", "all", or a name), see `ports.device_address`."""
    host = {"lo": "127.0.0.1", "all": "0.0.0.0"}.get(device) or device_address(device)
    return f"tcp://{host}:{'*' if port is None else port}"


def reachable_address(address: str, device: str) -> str:
    """Returns a server's address as others have it: on a network device by `ports.device_address`, on ipc the same."""
    if not address.startswith("tcp://"):
        return address
    return f"tcp://{device_address(device)}:{address.rpartition(':')[2]}"


def _check_address(address: str, keys: Keys | None) -> None:
    if address.startswith("tcp://"):
        if keys is None:
            raise ConfigError(f"{address}: over TCP anyone can knock; expected the run's keys, found none.")
        if (port := address.rpartition(":")[2]) != "*" and not (port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"{address}: a port is a number from 1 to 65535, or * for a free one.")
        return
    if not address.startswith("ipc:///"):
        raise ConfigError(f"Expected an address ipc:///PATH or tcp://HOST:PORT, found {address!r}.")
    path = pathlib.Path(address.removeprefix("ipc://"))
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"A socket's path has {LONGEST_PATH} bytes at most, found {path}. Use a shorter folder.")
    try:
        found = path.parent.stat()
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be listened in: {error.strerror}. Make the folder first.") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path.parent} is open to others (mode {stat.S_IMODE(found.st_mode):o}): who can enter it could use the "
            "server. Make it this user's, of mode 700."
        )
