"""A client of the run store: asks, tells and sends heartbeats over one connection of the wire."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from agentkit.errors import AgentkitError, ConfigError
from agentkit.wire import Client, RefusedError, WireClosedError, WireTimeoutError, derive_keys

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.2
"""Seconds between two questions for a value that nobody has put yet; each pause is longer than the last."""

STRANGER_SECONDS = 1.0
"""How long a server that hangs up is listened to, and then tried once more, before it is taken for another run's."""

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\r\n\r\n"
"""Any run's store answers the first ten bytes, which begin libzmq's protocol; other servers may answer a line."""

_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:([0-9]{1,5})")


class RunStoreError(AgentkitError, RuntimeError):
    """Says that the run store does not answer, or refuses a request."""


class WrongRunError(RunStoreError, ConfigError):
    """Says that another run's store answered, or that the run id is wrong."""


class NodeTakenError(RunStoreError):
    """Says that another process has the name of this node, and lives."""


def is_address(text: str) -> bool:
    """Returns whether a text is "host:port", of a host's name or its IPv4 address."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 65536


def to_body(value: Any) -> np.ndarray:
    """Returns plain values as the body of a message: JSON, whose length the head of a message does not limit."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_body(body: Any) -> Any:
    """Returns the plain values that `to_body` wrote."""
    return json.loads(body.tobytes())


class RunStoreClient:
    """Connects one process to the run store. Thread-safe."""

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
            ConfigError: `address` is no such thing.
            WrongRunError: another run's store, or a wrong `run_id`.
            RunStoreError: no run store answers within `timeout`.
        """
        if not is_address(address):
            raise ConfigError(
                "Expected the run store's address as host:port, of a name or an IPv4 address and port 1 to 65535, "
                f"found {address!r}."
            )
        self.address = address
        self.run_id = run_id
        self._node = node
        self._incarnation = incarnation
        self._life = life
        self._process = secrets.token_hex(8)  # A process id may come again, and in containers each has number 1.
        self._timeout = timeout
        self._client = Client(f"tcp://{address}", derive_keys(run_id), patience=1.0)
        try:
            self._ask({"do": "get", "key": ""}, timeout)
        except BaseException:
            self._client.close()
            raise

    def get(self, key: str, timeout: float = 60.0, stop: threading.Event | None = None) -> Any:
        """Waits for a value and returns it; None as soon as `stop` is set.

        Raises:
            RunStoreError: nobody put it within `timeout` seconds, or the run store is gone.
        """
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
        while True:
            left = deadline - time.monotonic()
            found = self._ask({"do": "get", "key": key}, self._timeout)
            if found is not None:
                return found
            if left <= 0:
                raise RunStoreError(
                    f"Nothing was published under {key!r} in the run store {self.address} within {timeout:g} s."
                )
            if stop is None:
                time.sleep(min(pause, left))
            elif stop.wait(min(pause, left)):
                return None
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def peek(self, key: str, seconds: float = 0.2) -> Any:
        """Returns a value; None if nobody has put it, or the run store does not answer within `seconds`."""
        with contextlib.suppress(RefusedError, WireClosedError, WireTimeoutError):
            return from_body(self._client.ask(to_body({"do": "get", "key": key}), seconds))
        return None

    def put(self, key: str, value: Any, timeout: float | None = None) -> None:
        """Sets a value; raises RunStoreError if no run store answers within `timeout`, by default the client's."""
        self._ask({"do": "put", "key": key, "value": value}, self._timeout if timeout is None else timeout)

    def heartbeat(
        self,
        counts: Mapping[str, int],
        gauges: Mapping[str, float],
        idle_seconds: float,
        *,
        ready: bool = True,
        leaving: bool = False,
    ) -> dict[str, Any]:
        """Says that this node lives; ``{"stop": bool, "totals": {...}, "has_endpoint": bool}``.

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
        self._client.close()

    def _ask(self, message: dict[str, Any], timeout: float) -> Any:
        """Sends a message and returns the answer; a run store that is away is waited for until the deadline."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return from_body(self._client.ask(to_body(message), max(deadline - time.monotonic(), 0.1)))
            except RefusedError as error:
                if error.kind == "taken":
                    leaves = f"this one ({os.getpid()} on {socket.gethostname()}) leaves"
                    raise NodeTakenError(f"{error}: {leaves}.") from error
                raise RunStoreError(f"The run store refused: {error}") from error
            except (WireClosedError, WireTimeoutError) as error:
                if self._client.is_stranger and self._is_another_run():
                    raise WrongRunError(
                        f"What answers at {self.address} is not this run's store: it belongs to another run or "
                        "version, or the run id is wrong. Use the address and the run id of RUN/board.json."
                    ) from error
                if self._client.closed:
                    raise RunStoreError("This RunStoreClient was closed.") from error
                if time.monotonic() >= deadline:
                    raise RunStoreError(
                        f"The run store at {self.address} did not answer for {timeout:g} s ({error}). "
                        "Is the program running?"
                    ) from error

    def _is_another_run(self) -> bool:
        """Returns whether a server of somebody else's is at the address, for certain.

        A tunnel (``ssh -L``) or a proxy whose far end is away hangs up as such a server does, but without a word. Where
        a server speaks, it may be this run's, which has come back in this moment: it is tried once more.
        """
        if not _speaks(self.address):
            return False
        client = Client(f"tcp://{self.address}", derive_keys(self.run_id), patience=STRANGER_SECONDS)
        with contextlib.closing(client):
            try:
                client.ask(to_body({"do": "get", "key": ""}), STRANGER_SECONDS)
            except (WireClosedError, WireTimeoutError):
                return client.is_stranger
        return False


def _speaks(address: str) -> bool:
    """Returns whether a server at an address says anything to a stranger."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), STRANGER_SECONDS) as probe:
        probe.sendall(_GREETING)
        return bool(probe.recv(1))
    return False
