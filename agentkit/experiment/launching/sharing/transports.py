"""Carries parameters between processes: by shared memory on a host, and over the wire between hosts.

The learner's endpoint names the ways there are, and a reader takes the best one it can reach.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax

from agentkit.core import VariableSource, Versioned
from agentkit.distributed.context import NodeContext
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.variables import (
    BackgroundPublisher,
    SharedMemoryPublisher,
    SharedMemorySource,
    VariableClient,
    remove_shared_memory,
    remove_unused_shared_memory,
)
from agentkit.variables.served import ServedPublisher, ServedSource
from agentkit.wire import listen_address, reachable_address

PUBLISH_SECONDS = 0.02
"""Between two publications."""

SHARED_SECONDS, SERVED_SECONDS = PUBLISH_SECONDS, 0.1
"""How often a reader looks for newer parameters: in shared memory, which disturbs nobody, and over the wire, where
each look is a question to the learner. A quick actor takes a hundred steps in 0.1 s, and acts by old parameters."""

LOOK_SECONDS = 5.0
"""A reader that has had no newer parameters for so long asks the run store where the learner is."""


class TransportPublisher:
    """Publishes to each of some transports, beside the learner: its next step does not wait.

    What comes before `open` waits for it: a learner that restarts publishes its first, random parameters
    before it restores its own. In shared memory what was published outlives the learner, for evaluators that go on.

    Attributes:
        endpoint: plain values, for `make_source`.
    """

    def __init__(self, parts: list[Any], endpoint: dict[str, Any], publish_seconds: float = PUBLISH_SECONDS):
        """Takes the transports, how others find them, and the least time between two publications."""
        self._parts = [BackgroundPublisher(part, min_seconds=publish_seconds) for part in parts]
        self.endpoint = endpoint
        self._open = False
        self._held: tuple[int, Mapping[str, Nest]] | None = None

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest, soon."""
        if not self._open:
            self._held = version, variables
            return
        for part in self._parts:
            part.publish(version, variables)

    def open(self) -> None:
        """Lets publications through, and waits for that of the newest so far.

        Raises:
            ConfigError: there is no room for the parameters, or they cannot be published for another reason.
        """
        self._open = True
        if self._held is not None:
            self.publish(*self._held)
            self._held = None
        for part in self._parts:
            part.flush()

    def close(self) -> None:
        """Publishes parameters that wait; those who read them over the wire have a moment to fetch them."""
        for part in self._parts:
            part.close()


class _KeptOpen(NamedTuple):
    """A publisher without its `close`, which would take back what it published."""

    publisher: Any

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        self.publisher.publish(version, variables)


def make_publisher(
    context: NodeContext, listen: str = "lo", publish_seconds: float = PUBLISH_SECONDS
) -> TransportPublisher:
    """Builds the publisher of a learner node: into shared memory, and on a server for other hosts if it listens there.

    Args:
        context: the learner's.
        listen: the network device of that server; "lo" is this machine alone, which needs none.
        publish_seconds: between two publications, at least.
    """
    name = parameters_name(context.store.run_id, context.name)
    endpoint: dict[str, Any] = {"node": context.name, "host": socket.gethostname(), "shared_memory": name}
    remove_unused_shared_memory()
    parts: list[Any] = [_KeptOpen(SharedMemoryPublisher(name))]
    if listen != "lo":
        key = f"port/{context.name}"  # The same after a restart, for readers that are connected.
        port = context.store.status()["values"].get(key)
        try:
            served = ServedPublisher(context.store.run_id, listen_address(listen, port))
        except ConfigError:
            if port is None:
                raise
            served = ServedPublisher(context.store.run_id, listen_address(listen))  # Readers ask the store for it.
        parts.append(served)
        context.store.put(key, int(parts[-1].address.rpartition(":")[2]))
        endpoint["served"] = reachable_address(parts[-1].address, listen)
    return TransportPublisher(parts, endpoint, publish_seconds)


@final
class LearnerSource(VariableSource):
    """Reads a learner's parameters, for one `VariableClient`, also where the learner comes back on another machine."""

    def __init__(self, context: NodeContext, endpoint: Mapping[str, Any]):
        """Takes the reader's context, and the learner's endpoint; raises as `make_source`."""
        self._context = context
        self._endpoint = dict(endpoint)
        self._source = _open_source(context, endpoint)
        self._handed_out: set[tuple[str, ...]] = set()  # By the source of this endpoint.
        self._look_at = time.monotonic() + LOOK_SECONDS

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Implements `core.VariableSource.get`.

        Raises:
            ConnectionError, TimeoutError: the learner does not answer; it may later.
            ConfigError: it has come back on another host, and publishes in its memory alone.
        """
        names = tuple(names)
        if time.monotonic() >= self._look_at:
            self._look_for_learner()
        found = self._source.get(names, newer_than if names in self._handed_out else -1)
        if found is not None:
            self._handed_out.add(names)
            self._look_at = time.monotonic() + LOOK_SECONDS
        return found

    def find_period(self) -> float:
        """Returns how often to look for newer parameters, in seconds: it depends on the way that they travel."""
        return SHARED_SECONDS if isinstance(self._source, SharedMemorySource) else SERVED_SECONDS

    def _look_for_learner(self) -> None:
        """Reads from where the learner is now, as the run store says; shared memory alone never tells that it left."""
        node = self._endpoint["node"]
        told = self._context.store.peek(f"endpoint/{node}")
        found = None if told is None else told["value"]  # The store may be away, or not have heard of it yet.
        if isinstance(found, Mapping) and found.get("node") == node and found != self._endpoint:
            self._source.close()
            self._source, self._endpoint = _open_source(self._context, found), dict(found)
            self._handed_out.clear()
        self._look_at = time.monotonic() + LOOK_SECONDS


def make_source(context: NodeContext, endpoint: Mapping[str, Any]) -> VariableSource:
    """Returns the best source of a learner's parameters from where this node runs.

    Raises:
        ConfigError: there is none: the learner is on another host, and publishes in its memory alone.
    """
    return LearnerSource(context, endpoint)


def _open_source(context: NodeContext, endpoint: Mapping[str, Any]) -> SharedMemorySource | ServedSource:
    if endpoint["host"] == socket.gethostname():
        return SharedMemorySource(endpoint["shared_memory"])
    if "served" in endpoint:
        return ServedSource(endpoint["served"], context.store.run_id)
    raise ConfigError(
        f"The learner is on {endpoint['host']}, this node is on {socket.gethostname()}, and the parameters are in "
        "the learner's memory. Name the network device that reaches both: --listen (listen=)."
    )


def make_client(
    context: NodeContext,
    endpoint: Mapping[str, Any],
    max_age_seconds: float | None = None,
    place: Callable[[Nest], Nest] = jax.device_put,
) -> VariableClient:
    """Returns what keeps a node's copy of a learner's parameters fresh: see `VariableClient` for the arguments."""
    source = LearnerSource(context, endpoint)
    return VariableClient(
        source, update_seconds=source.find_period, max_age_seconds=max_age_seconds, timeout=120.0, place=place
    )


def parameters_name(run_id: str, node: str) -> str:
    """Returns a name for the publications of a run's node; it hides the secret, and outlives a restart."""
    return hashlib.sha256(f"parameters of {node} of {run_id}".encode()).hexdigest()[:24]


def forget_parameters(run_id: str, nodes: Iterable[str] = ("learner-0",)) -> None:
    """Frees the shared memory of a run that has ended, for each of its `nodes` that may have published."""
    for node in nodes:
        remove_shared_memory(parameters_name(run_id, node))
