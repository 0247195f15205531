"""Parameters over `agentkit.wire`, from the learner's own process: across machines, on any stack."""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.types import Nest
from agentkit.variables import layout
from agentkit.wire import Client, RefusedError, Request, Server, keys_at

_LOOK_SECONDS = 0.1

LINGER_SECONDS = 1.0
"""How long a publisher that is closed stays for those who have asked within as long and lack the newest parameters."""

PARTING_SECONDS = 0.2
"""How long a publisher that is closed stays after its last answer, for whoever asked to read it."""


class ServedPublisher:
    """Publishes parameters, on a server in a thread of this process. Thread-safe.

    Attributes:
        address: for sources, as seen from this machine.
    """

    def __init__(self, run_id: str, address: str):
        """Serves at once.

        Args:
            run_id: the run's secret.
            address: where to listen, see `agentkit.wire.Server`.

        Raises:
            ConfigError: the address cannot be had.
        """
        self._server = Server(address, keys_at(address, run_id))
        self.address = self._server.address
        self._generation = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._version = -1
        self._published: tuple[float, dict[str, Any], list[np.ndarray]] | None = None
        self._told: dict[bytes, tuple[float, int]] = {}  # By reader: when it asked last, and what it has since.
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="parameters", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Returns the newest version, -1 before the first one."""
        return self._version

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest; `version` is the number of updates behind them.

        Raises:
            ConfigError: the version goes down, or the publisher was closed.
            SpecError: what is no nest of arrays.
        """
        description, leaves = layout.describe(variables)
        own = [np.array(leaf, order="C") for leaf in leaves]
        if self._closed.is_set():
            raise ConfigError("This publisher was closed; make a new one.")
        with self._lock:
            if version < self._version:
                raise ConfigError(
                    f"Parameters of version {version} were published after version {self._version}. Versions count "
                    "learner updates and never go down; make a new publisher for a new learner."
                )
            self._version, self._published = int(version), (time.time(), description, own)

    def _serve(self) -> None:
        end = math.inf
        while time.monotonic() < end:
            request = self._server.receive(_LOOK_SECONDS)
            if request is not None:
                self._answer(request)
            if self._closed.is_set():
                end = min(end, time.monotonic() + LINGER_SECONDS if self._is_lacked() else 0.0)
        self._server.close(PARTING_SECONDS)

    def _is_lacked(self) -> bool:
        """Returns whether somebody who has asked lately lacks the newest parameters."""
        since = time.monotonic() - LINGER_SECONDS
        return any(asked > since and version < self._version for asked, version in self._told.values())

    def _note(self, reader: bytes, version: int) -> None:
        """Notes what a reader has; forgets those who have not asked lately, who come first."""
        now = time.monotonic()
        self._told.pop(reader, None)
        self._told[reader] = now, version
        while (oldest := next(iter(self._told.items())))[1][0] < now - LINGER_SECONDS:
            del self._told[oldest[0]]

    def _answer(self, request: Request) -> None:
        """Answers with the parameters of some names, or None where there are none newer than the asker has."""
        with self._lock:
            version, published = self._version, self._published
        try:
            names, had = [str(name) for name in request.body["names"]], request.body["newer_than"]
            same = request.body["generation"] in (None, self._generation)
            self._note(request.sender, version)
            if published is None or (same and version <= had):
                self._server.answer(request, None)
                return
            at, description, leaves = published
            layout.check_names(names, description)
        except Exception as error:  # Of whatever kind: nothing that a request says may end the server.
            self._server.refuse(request, str(error), type(error).__name__)
            return
        start, wanted = 0, list[np.ndarray]()
        for name, node in description.items():
            count = len(list(layout.arrays_of(node)))
            if name in names:
                wanted += leaves[start : start + count]
            start += count
        nodes = {name: node for name, node in description.items() if name in names}
        answer = {"generation": self._generation, "version": version, "published": at}
        self._server.answer(request, {**answer, "layout": json.dumps(nodes), "leaves": wanted})

    def close(self) -> None:
        """Ends the server, see `LINGER_SECONDS`. May be called twice."""
        self._closed.set()
        self._thread.join()


class ServedSource(VariableSource):
    """Reads parameters, for one `VariableClient`. Thread-safe.

    To ask costs some tenths of a millisecond. While the publisher is away, the first call waits for the timeout and
    later ones return at once.
    """

    def __init__(self, address: str, run_id: str, *, timeout: float = 5.0):
        """Makes a `ServedSource`; the publisher may come later.

        Args:
            address: the publisher's, as seen from here.
            run_id: the run's secret.
            timeout: seconds that a call waits for an answer.
        """
        self._address, self._keys = address, keys_at(address, run_id)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._handed_out: dict[tuple[str, ...], str] = {}

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Implements `core.VariableSource.get`.

        Raises:
            UnknownNameError: if a name was never published.
            RefusedError: the publisher refuses the question for another reason, as one of another version.
            ConnectionError, TimeoutError: the publisher does not answer; it may later.
            SpecError: what was published cannot be put together here.
        """
        names = tuple(names)
        with self._lock:
            timeout = self._timeout if self._client is None or self._client.connected else 0.0
            if self._client is None:
                self._client = Client(self._address, self._keys, patience=timeout)
            question = {"names": list(names), "newer_than": newer_than, "generation": self._handed_out.get(names)}
            try:
                found = self._client.ask(question, timeout)
            except RefusedError as error:
                if error.kind != UnknownNameError.__name__:
                    raise
                raise UnknownNameError(str(error)) from error
            if found is None:
                return None
            leaves = iter(found["leaves"])
            variables = {name: layout.build(node, leaves) for name, node in json.loads(found["layout"]).items()}
            self._handed_out[names] = found["generation"]
            return Versioned(found["version"], {name: variables[name] for name in names}, found["published"])

    def close(self) -> None:
        """Disconnects; a later `get` connects anew."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None
