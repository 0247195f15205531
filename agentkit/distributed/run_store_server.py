"""Takes the connections to a run store: JSON lines over TCP, each after a `handshake`, never pickle.

Who has not shown the run id yet has little: so many connections at once, so many bytes, so many seconds. Beyond
that the oldest stranger is dropped for the newest one, so that strangers keep no node of the run out.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

from agentkit.distributed import handshake
from agentkit.distributed.run_store_client import keep_alive
from agentkit.ports import raise_descriptor_limit

MAX_LINE = 1 << 20
"""The longest message of a member, bytes."""

MAX_STRANGERS = 64
"""Connections at once that have not shown the run id."""

MAX_STRANGER_LINE = 1024
"""The longest message of one of these, bytes."""

HANDSHAKE_SECONDS = 5.0
"""How long a connection may take in all to show the run id."""


class RefusedError(Exception):
    """Says why a member's message is refused; `kind` is for programs."""

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


class Server(socketserver.ThreadingTCPServer):
    """Answers members, each in a thread of its own."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], run_id: str, answer: Callable[[dict[str, Any]], Any]):
        """Listens at once.

        Args:
            address: host and port.
            run_id: the run's secret.
            answer: does what a member's message asks for; the value goes back.

        Raises:
            OSError: the port is taken, or the host is not this machine's.
        """
        self.run_id = run_id
        self.answer = answer
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # The oldest first.
        raise_descriptor_limit()
        super().__init__(address, _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins a stranger's connection, and drops the oldest of too many."""
        with self._lock:
            self._connections.add(request)
            self._strangers[request] = None
            dropped = next(iter(self._strangers)) if len(self._strangers) > MAX_STRANGERS else None
            if dropped is not None:
                del self._strangers[dropped]
        if dropped is not None:
            _shut(dropped)  # Its thread wakes up and ends.
        super().process_request(request, client_address)

    def admit(self, request: socket.socket) -> bool:
        """Takes a connection out of the strangers; False if it has been dropped as one."""
        with self._lock:
            return self._strangers.pop(request, request) is None

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        with self._lock:
            self._connections.discard(request)
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        """Ends every connection."""
        with self._lock:
            open_now = list(self._connections)
        for connection in open_now:
            _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a connection that breaks: its owner reconnects."""


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        if not self._shake_hands(time.monotonic() + HANDSHAKE_SECONDS):
            return
        keep_alive(self.connection)
        self.connection.settimeout(None)
        while (message := _parse(self.rfile.readline(MAX_LINE))) is not None:
            try:
                self._write({"value": self.server.answer(message)})
            except RefusedError as error:
                self._write({"error": str(error), "kind": error.kind})
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self._write({"error": f"malformed message: {error!r}"})

    def _shake_hands(self, deadline: float) -> bool:
        """Lets those in who know the run id, and tells others why not; see `handshake`."""
        hello = self._read(deadline)
        if hello is None:
            return False
        if hello.get("protocol") != handshake.PROTOCOL:
            versions = f"this run store speaks protocol {handshake.PROTOCOL}, the client {hello.get('protocol', 1)!r}"
            self._write({"error": f"{versions}: use one version of agentkit for all nodes of a run"})
            return False
        theirs, mine, run_id = str(hello.get("nonce")), handshake.draw_nonce(), self.server.run_id
        self._write({"value": {"nonce": mine}})
        answer = self._read(deadline)
        if answer is None:
            return False
        if not handshake.is_proof(answer.get("proof"), run_id, "client", theirs, mine):
            self._write({"error": handshake.WRONG_RUN})
            return False
        if not self.server.admit(self.request):
            return False
        self._write({"value": {"proof": handshake.prove(run_id, "run store", theirs, mine)}})
        return True

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """Returns a stranger's next message; None where it is too long, too late, no JSON object, or several."""
        held = b""
        while not held.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or len(held) >= MAX_STRANGER_LINE:
                return None
            self.connection.settimeout(left)
            chunk = self.connection.recv(MAX_STRANGER_LINE - len(held))
            if not chunk:
                return None
            held += chunk
        found = _parse(held)
        return found if isinstance(found, dict) else None

    def _write(self, message: Any) -> None:
        self.wfile.write(json.dumps(message).encode() + b"\n")


def _parse(line: bytes) -> Any:
    """Returns a message; None at the end, or where it is not JSON."""
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
