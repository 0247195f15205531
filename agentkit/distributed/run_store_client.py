"""A client of the run store: asks, tells and sends heartbeats over one connection that it makes anew where needed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from agentkit.distributed import handshake
from agentkit.errors import AgentkitError, ConfigError

_MAX_ANSWER = 1024
"""The longest line, bytes, that is read from who has not shown yet that he is the run store."""


class RunStoreError(AgentkitError, RuntimeError):
    """Says that the run store does not answer, or refuses a request."""


class WrongRunError(RunStoreError, ConfigError):
    """Says that another run's store answered, or that the run id is wrong."""


class NodeTakenError(RunStoreError):
    """Says that another process has the name of this node, and lives."""


def keep_alive(connection: socket.socket) -> None:
    """Makes TCP notice within about 11 s that the other host has vanished without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class RunStoreClient:
    """Connects one process to the run store. Thread-safe; reconnects for every call that needs it."""

    def __init__(
        self,
        address: str,
        run_id: str,
        *,
        node: str | None = None,
        incarnation: int = 0,
        life: str | None = None,
        timeout: float = 10.0,
    ):
        """Connects.

        Args:
            address: "host:port".
            run_id: the run's secret.
            node: whose heartbeats it sends; None for one that only asks.
            incarnation: how often the node was restarted.
            life: what the node's name was claimed with, see `claim`.
            timeout: seconds that a call may take to reach the run store.

        Raises:
            WrongRunError: another run's store, or a wrong `run_id`.
            RunStoreError: no run store answers within `timeout`.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"Expected the run store's address as host:port, port 1 to 65535, found {address!r}.")
        self.address = address
        self._target = (host.strip("[]"), int(port))
        self.run_id = run_id
        self._node = node
        self._incarnation = incarnation
        self._life = life
        self._process = secrets.token_hex(8)  # A process id may come again, and in containers each has number 1.
        self._timeout = timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._closed = False
        self._ask({"do": "get", "key": "", "timeout": 0.0}, timeout)

    def get(self, key: str, timeout: float = 60.0) -> Any:
        """Waits for a value and returns it.

        Raises:
            RunStoreError: nobody put it within `timeout` seconds, or the run store is gone.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            # In slices: the lock is free between them, so that heartbeats get through.
            found = self._ask({"do": "get", "key": key, "timeout": min(left, 0.2)}, min(left, 0.2) + self._timeout)
            if found is not None:
                return found
            if left == 0.0:
                raise RunStoreError(
                    f"Nothing was published under {key!r} in the run store {self.address} within {timeout:g} s."
                )
            time.sleep(0.01)

    def put(self, key: str, value: Any) -> None:
        """Sets a value; raises RunStoreError if the run store is gone."""
        self._ask({"do": "put", "key": key, "value": value}, self._timeout)

    def heartbeat(
        self,
        counts: Mapping[str, int],
        gauges: Mapping[str, float],
        idle_seconds: float,
        *,
        ready: bool = True,
        leaving: bool = False,
    ) -> dict[str, Any]:
        """Says that this node lives; ``{"stop": bool, "totals": {...}}``.

        Raises:
            NodeTakenError: another process has claimed the node's name meanwhile.
        """
        message = {
            "do": "beat",
            "node": self._node,
            "incarnation": self._incarnation,
            "life": self._life,
            "process": self._process,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "counts": dict(counts),
            "gauges": dict(gauges),
            "idle_seconds": idle_seconds,
            "ready": ready,
            "leaving": leaving,
        }
        return self._ask(message, min(self._timeout, 5.0))

    def claim(self, node: str, life: str) -> dict[str, Any] | None:
        """Asks for a node's name, for a process that joins by itself.

        Args:
            node: e.g. "actor-3".
            life: tells this process's claim from any other's.

        Returns:
            None if it is granted; else who has it: "host", "pid", and "beat_age_seconds".
        """
        message = {"do": "claim", "node": node, "life": life, "pid": os.getpid(), "host": socket.gethostname()}
        found: dict[str, Any] | None = self._ask(message, self._timeout)
        return found

    def status(self) -> dict[str, Any]:
        """Returns the answer of `RunStore.status`."""
        return self._ask({"do": "status"}, self._timeout)

    def save_counts(self) -> dict[str, Any]:
        """Returns the answer of `RunStore.save_counts`."""
        return self._ask({"do": "save counts"}, self._timeout)

    def command(self, name: str, **arguments: Any) -> None:
        """Asks the supervisor for something: "stop", or "scale" with a role and a count."""
        self._ask({"do": "command", "name": name, "arguments": arguments}, self._timeout)

    def close(self) -> None:
        """Disconnects. May be called twice."""
        self._closed = True
        with self._lock:
            self._disconnect()

    def _ask(self, message: dict[str, Any], timeout: float) -> Any:
        """Sends a message and reads the answer, connecting anew until the deadline where that is needed."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while True:
                if self._closed:
                    raise RunStoreError("This RunStoreClient was closed.")
                try:
                    if self._socket is None:
                        self._connect(deadline)
                    return self._exchange(message, deadline)
                except (OSError, EOFError, ValueError) as error:
                    self._disconnect()
                    if isinstance(error, ConfigError):
                        raise
                    if time.monotonic() >= deadline:
                        raise RunStoreError(
                            f"The run store at {self.address} did not answer for {timeout:g} s ({error!r}). "
                            "Is the program running?"
                        ) from error
                    time.sleep(0.05)

    def _connect(self, deadline: float) -> None:
        left = max(deadline - time.monotonic(), 0.1)
        self._socket = socket.create_connection(self._target, timeout=min(left, 5.0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._socket)
        self._reader = self._socket.makefile("rb")
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        """Lets both ends prove that they know the run id: whoever listens might be anyone, see `handshake`."""
        mine = handshake.draw_nonce()
        theirs = self._part({"protocol": handshake.PROTOCOL, "nonce": mine}, "nonce", deadline)
        given = self._part({"proof": handshake.prove(self.run_id, "client", mine, theirs)}, "proof", deadline)
        if not handshake.is_proof(given, self.run_id, "run store", mine, theirs):
            raise self._wrong_run("What answers there does not know the run id. Who listens?")

    def _part(self, message: dict[str, Any], name: str, deadline: float) -> str:
        """Sends a message of the handshake, and returns a part of the answer."""
        self._send(message, deadline)
        line = self._reader.readline(_MAX_ANSWER)
        if not line:
            raise EOFError("connection closed")
        try:
            answer = json.loads(line)
            if answer.get("error", handshake.WRONG_RUN) != handshake.WRONG_RUN:
                raise self._wrong_run(f"It refused: {answer['error']}.")
            return str(answer["value"][name])
        except WrongRunError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._wrong_run("It belongs to another run or version, or the run id is wrong.") from None

    def _wrong_run(self, why: str) -> WrongRunError:
        return WrongRunError(
            f"The run store at {self.address} is not this run's: {why} "
            "Use the address and the run id of RUN/board.json."
        )

    def _send(self, message: dict[str, Any], deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(deadline - time.monotonic(), 0.1))
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _exchange(self, message: dict[str, Any], deadline: float) -> Any:
        self._send(message, deadline)
        found = self._reader.readline()
        if not found.endswith(b"\n"):
            raise EOFError("connection closed")
        answer = json.loads(found)
        if answer.get("kind") == "taken":
            raise NodeTakenError(f"{answer['error']}: this one ({os.getpid()} on {socket.gethostname()}) leaves.")
        if "error" in answer:
            raise RunStoreError(f"The run store refused: {answer['error']}")
        return answer["value"]

    def _disconnect(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            with contextlib.suppress(OSError):
                self._reader.close()
        self._socket = None
