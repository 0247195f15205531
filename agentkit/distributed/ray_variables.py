"""Parameters in Ray's object store: published by one learner, read by any number of processes.

A small actor of the engine, the holder, keeps the newest of each name. It is neither the learner's nor a
reader's: what was published outlives whoever published it.
"""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import cloudpickle
import numpy as np
import tree

from agentkit.core import VariableSource, Versioned
from agentkit.distributed.ray_cluster import first_line, import_ray
from agentkit.errors import ConfigError, unknown_name
from agentkit.types import Nest

_LOGGER = logging.getLogger(__name__)


class _Published(NamedTuple):
    """What the holder keeps: who published it, which version, when, and references to it by name."""

    publisher: str
    version: int
    published: float
    references: dict[str, Any]


class Holder:
    """Holds the newest parameters of each name, in a process of its own."""

    def __init__(self) -> None:
        self._newest: dict[str, _Published] = {}

    def publish(self, name: str, publisher: str, version: int, published: float, packed: Mapping[str, Any]) -> None:
        """Keeps the parameters that `RayVariables.publish` has packed."""
        # Put here, not by the learner: an object dies with the process that put it.
        put = import_ray().put
        references = {variable: put(value) for variable, value in packed.items()}
        self._newest[name] = _Published(publisher, version, published, references)

    def newest(self, name: str, seen: str | None, newer_than: int) -> _Published | None:
        """Returns the newest, unless it is from publisher `seen` (or that is None) and not newer than this version."""
        newest = self._newest.get(name)
        return newest if newest is not None and _is_new(newest, seen, newer_than) else None


def _is_new(found: _Published, seen: str | None, newer_than: int) -> bool:
    return found.version > newer_than or seen not in (None, found.publisher)


_connection: tuple[Any, Any] | None = None


def use_holder(ray: Any, holder: Any) -> None:
    """Tells this process the package and the handle of its engine's holder; None for none any more."""
    global _connection
    _connection = None if holder is None else (ray, holder)


@final
class RayVariables(VariableSource):
    """Publishes or reads parameters in the nodes of a `RayEngine`, and where that was made.

    One learner publishes under a name, any number of processes read it; the parameters travel once to each
    machine. What a reader gets is read-only numpy, in memory that it shares with the other readers of its
    machine. A holder that is dead or out of reach is no error: readers keep what they have, and see from
    its time that it is old; Ray restarts the holder, and the next `publish` fills it. Not thread-safe.
    """

    def __init__(self, name: str, timeout: float = 5.0):
        """Makes a `RayVariables`.

        Args:
            name: the same for those who publish and read the same.
            timeout: seconds that one call may wait for the holder, or for the parameters.

        Raises:
            ConfigError: this process is no node of a `RayEngine`.
        """
        if _connection is None:
            raise ConfigError("RayVariables work in the nodes of a RayEngine, and this process is none of them.")
        self._ray, self._holder = _connection
        self._name = name
        self._timeout = timeout
        self._id = uuid.uuid4().hex
        self._publishing: Any = None
        self._asking: Any = None
        self._stuck = False
        self._version = -1
        self._seen: dict[tuple[str, ...], str] = {}  # The publisher of what was handed out, by names.

    @property
    def version(self) -> int:
        """Returns the newest version that this object has published, -1 before the first one."""
        return self._version

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest; returns once they are copied, while the holder takes them over.

        Where the holder does not answer, that is logged once, what is published meanwhile is left out, and
        only the first call waits.

        Args:
            version: the number of updates behind them.
            variables: nests of arrays by name; jax arrays become numpy.

        Raises:
            ConfigError: if the version goes down. A restarted learner, with a new object, may begin lower.
        """
        if version < self._version:
            raise ConfigError(
                f"Parameters of version {version} were published after version {self._version}. Versions count "
                "learner updates and never go down; make new RayVariables for a new learner."
            )
        self._version = version
        if self.flush(0.0 if self._stuck else self._timeout):
            packed = {name: _pack(nest) for name, nest in variables.items()}
            self._publishing = self._holder.publish.remote(self._name, self._id, version, time.time(), packed)

    def flush(self, timeout: float) -> bool:
        """Waits until the holder has answered to the last `publish`; whether it did in time."""
        if self._publishing is None:
            return True
        if not self._ray.wait([self._publishing], timeout=timeout)[0]:
            self._note(f"the holder has not answered for {timeout:g} s")
            return False
        publishing, self._publishing = self._publishing, None
        try:
            self._ray.get(publishing, timeout=self._timeout)
            self._stuck = False
        except self._ray.exceptions.RayError as error:
            self._note(first_line(error))
        return True

    def close(self) -> None:
        """Waits for the last `publish`, up to the timeout."""
        self.flush(self._timeout)

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Returns parameters as `core.VariableSource` says; None, too, where nobody answers in time.

        After a restart of the learner its parameters are newer, whatever their version.
        """
        names = tuple(names)
        found = self._ask(names, newer_than)
        if found is None:
            return None
        for name in names:
            if name not in found.references:
                raise unknown_name("variable", name, found.references)
        try:
            packed = self._ray.get([found.references[name] for name in names], timeout=self._timeout)
        except self._ray.exceptions.RayError:  # Too slow, or lost with the machine that had it.
            return None
        self._seen[names] = found.publisher
        variables = {name: _unpack(*parts) for name, parts in zip(names, packed, strict=True)}
        return Versioned(found.version, variables, found.published)

    def _ask(self, names: tuple[str, ...], newer_than: int) -> _Published | None:
        """Returns what the holder has, if new. Only an outage's first call waits; later ones look for its answer."""
        seen, patience = self._seen.get(names), 0.0
        if self._asking is None:
            self._asking, patience = self._holder.newest.remote(self._name, seen, newer_than), self._timeout
        if not self._ray.wait([self._asking], timeout=patience)[0]:
            return None
        asking, self._asking = self._asking, None
        try:
            found = self._ray.get(asking, timeout=self._timeout)
        except self._ray.exceptions.RayError:
            return None
        # Asked again here: the question may be an earlier call's.
        return found if found is not None and _is_new(found, seen, newer_than) else None

    def _note(self, why: str) -> None:
        if not self._stuck:
            _LOGGER.warning("Parameters are not published: %s. Actors go on with older ones.", why)
        self._stuck = True


def _pack(nest: Nest) -> tuple[bytes, list[np.ndarray]]:
    """Returns a nest as a small pickle and its arrays' bytes, which the object store keeps without another copy."""
    buffers: list[pickle.PickleBuffer] = []
    plain = tree.map_structure(lambda leaf: np.asarray(leaf) if hasattr(leaf, "__array__") else leaf, nest)
    head = cloudpickle.dumps(plain, protocol=5, buffer_callback=buffers.append)
    return head, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def _unpack(head: bytes, buffers: Sequence[np.ndarray]) -> Nest:
    return pickle.loads(head, buffers=buffers)  # From the cluster alone, where Ray's token admits.
