"""Parameters through a Reverb server of the learner's own: across machines, without Ray. Extra: ``reverb``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, ReplayClosedError, SpecError
from agentkit.replay.reverb.parameter_server import ParameterServerClient, Publication, ReverbParameterServer, Stamp
from agentkit.types import Nest
from agentkit.variables import layout


class ReverbPublisher:
    """Publishes parameters, on a server of its own in this process. Thread-safe.

    A publication costs a copy to the server, about 2 ms per MB: `BackgroundPublisher` takes it out of
    the learner's way.
    """

    def __init__(self, run_id: str, *, port: int | None = None, listen: str = "lo", timeout: float = 60.0):
        """Starts the server; see `ReverbParameterServer`, also for the errors.

        Args:
            run_id: sources of another run do not read from it.
            port: to serve on, fixed for sources that outlive the learner; None finds a free one.
            listen: the network device to listen on; "lo" is this machine alone.
            timeout: seconds that `publish` waits for the server.
        """
        self._server = ReverbParameterServer(run_id, port=port, listen=listen, timeout=timeout)
        self._lock = threading.Lock()
        self._version = -1

    @property
    def address(self) -> str:
        """Returns the address for sources on this machine, "localhost:port"."""
        return self._server.address

    @property
    def port(self) -> int:
        """Returns the port that the server listens on."""
        return self._server.port

    @property
    def version(self) -> int:
        """Returns the newest version, -1 before the first one."""
        return self._version

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest; `version` is the number of updates behind them.

        Raises:
            ConfigError: the version goes down.
            SpecError: what is no nest of arrays.
            ReplayTimeoutError, ReplayClosedError: the server did not take them.
        """
        description, leaves = layout.describe(variables)
        with self._lock:
            if version < self._version:
                raise ConfigError(
                    f"Parameters of version {version} were published after version {self._version}. Versions count "
                    "learner updates and never go down; make a new publisher for a new learner."
                )
            header = {"version": int(version), "published": time.time(), "layout": description}
            self._server.put(header, [_to_plain(leaf) for leaf in leaves])
            self._version = version

    def close(self) -> None:
        """Ends the server. May be called twice."""
        self._server.close()


class ReverbSource(VariableSource):
    """Reads parameters, for one `VariableClient`. Thread-safe.

    To ask costs about a millisecond, so set `VariableClient.update_seconds`. While the server is away,
    the first call waits for the timeout and later ones return at once.
    """

    def __init__(self, address: str, run_id: str, *, timeout: float = 5.0):
        """Makes a `ReverbSource`; the publisher may come later.

        Args:
            address: the publisher's, as seen from here: "host:port".
            run_id: the publisher's.
            timeout: seconds that a call waits for an answer.
        """
        self._client = ParameterServerClient(address, run_id, timeout=timeout)
        self._lock = threading.Lock()
        self._publication: Publication | None = None
        self._handed_out: dict[tuple[str, ...], Stamp] = {}

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Implements `core.VariableSource.get`.

        Raises:
            UnknownNameError: if a name was never published.
            ConnectionError: the publisher does not answer; it may later.
            SpecError: what was published cannot be put together here.
        """
        names = tuple(names)
        with self._lock:
            publication = self._newest()
            if publication is None:
                return None
            sender = publication.stamp.sender
            if self._handed_out.get(names, publication.stamp).sender != sender:
                newer_than = -1
            if int(publication.header["version"]) <= newer_than:
                return None
            layout.check_names(names, publication.header["layout"])
            found = _unpack(publication, names)
            self._handed_out[names] = publication.stamp
            return found

    def close(self) -> None:
        """Frees the connection; a later `get` fetches anew."""
        with self._lock:
            self._publication = None

    def _newest(self) -> Publication | None:
        try:
            publication = self._client.get(None if self._publication is None else self._publication.stamp)
        except ReplayClosedError as error:
            raise ConnectionError(str(error)) from error
        if publication is not None:
            header = publication.header
            kinds = {"version": int, "published": float, "layout": dict}
            if not all(isinstance(header.get(key), kind) for key, kind in kinds.items()):
                raise ConnectionError(f"What is published at {self._client.address} are no parameters: {header}")
            self._publication = publication
        return self._publication


def _to_plain(leaf: np.ndarray) -> np.ndarray:
    """Turns bfloat16 and its kind, which Reverb does not know, into unsigned integers of the same bits."""
    return leaf if leaf.dtype.isbuiltin == 1 else leaf.view(f"u{leaf.dtype.itemsize}")


def _unpack(publication: Publication, names: Sequence[str]) -> Versioned:
    """Returns the variables of these names, as copies."""
    description, variables, start = publication.header["layout"], {}, 0
    for name, node in description.items():
        expected = list(layout.arrays_of(node))
        leaves = publication.arrays[start : start + len(expected)]
        start += len(expected)
        if name in names:
            made = [_from_plain(*pair) for pair in zip(leaves, expected, strict=False)]
            if len(made) != len(expected):
                raise SpecError(f"Variable {name!r}: expected {len(expected)} arrays, found {len(made)}.")
            variables[name] = layout.build(node, iter(made))
    return Versioned(int(publication.header["version"]), variables, float(publication.header["published"]))


def _from_plain(leaf: np.ndarray, expected: tuple[np.dtype, tuple[int, ...]]) -> np.ndarray:
    dtype, shape = expected
    if leaf.shape != shape or leaf.dtype.itemsize != dtype.itemsize:
        raise SpecError(f"Expected an array {dtype}{list(shape)}, found {leaf.dtype}{list(leaf.shape)}.")
    return leaf.view(dtype).copy()
