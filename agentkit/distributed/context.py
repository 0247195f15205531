"""The context that a node's function gets: its name, a way to say that it is ready and alive, and the word to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from agentkit.distributed.run_store_client import NodeTakenError, RunStoreClient, RunStoreError, WrongRunError

HEARTBEAT_SECONDS = 0.5
"""How often a node says that it lives."""

AFTER_CALL_SECONDS = 20.0
"""What a node that is to stop has left, at least, when a call that it announced has ended."""

LOST_SECONDS = 15.0
"""A node that has not reached the run store for this long stops: nobody would stop it any more."""


@dataclasses.dataclass
class Patience:
    """Holds until when a node may take longer than its limits say.

    Attributes:
        until: monotonic seconds.
    """

    until: float = 0.0


@dataclasses.dataclass(frozen=True)
class NodeId:
    """Identifies a node of a program.

    Attributes:
        name: e.g. "actor-3".
        role: e.g. "actor".
        index: within its role, from 0.
        incarnation: how often it was restarted.
        run_directory: where the run keeps its files; None for nowhere.
    """

    name: str
    role: str
    index: int
    incarnation: int = 0
    run_directory: pathlib.Path | None = None


class NodeContext:
    """Connects a node with its program. A thread of its own sends the heartbeats.

    Attributes:
        name, role, index, incarnation, run_directory: see `NodeId`.
        store: the program's run store.
        lost: it stops because the run store was silent for `LOST_SECONDS`, or is another run's now, or because another
            process has its name: started again, it may find its place.
        replaced: another process has its name, and its part of the run folder.
    """

    def __init__(
        self,
        node_id: NodeId,
        store: RunStoreClient,
        *,
        stop: threading.Event | None = None,
        patience: Patience | None = None,
    ):
        """Starts the heartbeats.

        Args:
            node_id: which node it is.
            store: the program's run store.
            stop: set when the node is to stop, by whoever likes.
            patience: what announced calls extend; None for nobody's.
        """
        self.name, self.role, self.index = node_id.name, node_id.role, node_id.index
        self.incarnation, self.run_directory = node_id.incarnation, node_id.run_directory
        self.store = store
        self._stop = stop or threading.Event()
        self._patience = patience or Patience()
        self._num_calls, self._in_call = 0, False
        self._counts: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._gauges: dict[str, float] = {}
        self._totals: dict[str, int] = {}
        self._last_heartbeat = time.monotonic()
        self._ready = False
        self._endpoint: dict[str, Any] = {}
        self.lost = self.replaced = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._send_heartbeats, name=f"beat-{self.name}", daemon=True)
        self._thread.start()

    def ready(self, endpoint: Any = None) -> None:
        """Says that this node can be used; those that wait for it are started.

        Args:
            endpoint: what handles to this node become (anything that JSON has), e.g. an address.
        """
        self.sync()  # What it has counted and gauged so far is seen by whoever sees that it is ready.
        self._endpoint = {"incarnation": self.incarnation, "value": endpoint}
        self.store.put(f"endpoint/{self.name}", self._endpoint)
        self._ready = True

    def heartbeat(self, **counts: int) -> None:
        """Says that the main loop goes round, and how far this incarnation has counted.

        Args:
            **counts: totals since this process began, such as ``steps=1200``. The program's own totals
                sum them over all nodes, those that have died included.
        """
        self._last_heartbeat = time.monotonic()
        if counts:
            self._counts = counts

    def gauge(self, **values: float) -> None:
        """Sets numbers that the status shows, such as ``parameter_age_seconds=0.2``."""
        self._gauges = {**self._gauges, **values}

    @contextlib.contextmanager
    def busy(self, what: str, seconds: float) -> Iterator[None]:
        """Announces a call that may keep the interpreter, the main loop or a stop waiting; the status shows it.

        The node is not taken for dead meanwhile, nor killed as too slow to start or to stop. A call within an announced
        one is a part of it.

        Args:
            what: for people, such as "restoring replay".
            seconds: for at most how long.
        """
        if self._in_call:
            yield
            return
        self._in_call, self._num_calls = True, self._num_calls + 1
        key, call = f"busy/{self.name}", {"incarnation": self.incarnation, "number": self._num_calls, "what": what}
        self._patience.until = time.monotonic() + seconds
        with contextlib.suppress(RunStoreError):  # It is away: then nobody judges.
            self.store.put(key, {**call, "seconds": seconds})
        try:
            yield
        finally:
            self._last_heartbeat = time.monotonic()
            with contextlib.suppress(RunStoreError):
                self.sync()  # Before it is judged again, it is heard.
                self.store.put(key, None)
            self._patience.until = time.monotonic() + AFTER_CALL_SECONDS
            self._in_call = False

    @property
    def should_stop(self) -> bool:
        """Returns True once this node is to save its data and return."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps for up to `seconds`; True as soon as the node is to stop. Counts as a heartbeat."""
        deadline = time.monotonic() + seconds
        while True:
            self._last_heartbeat = time.monotonic()
            left = deadline - time.monotonic()
            if left <= 0 or self._stop.wait(min(left, 1.0)):
                return self.should_stop

    def totals(self) -> dict[str, int]:
        """Returns the program's counts, as the store had them at the last heartbeat (half a second ago, at most)."""
        return self._totals

    def unsent(self, name: str) -> int:
        """Returns what this node has counted of a name since the last heartbeat; `totals` does not have it yet."""
        return self._counts.get(name, 0) - self._sent.get(name, 0)

    def request_stop(self, reason: str) -> None:
        """Asks the whole program to stop, in order; nodes that have work at the end are waited for."""
        self.store.command("stop", reason=reason, node=self.name)

    def sync(self, leaving: bool = False) -> None:
        """Sends a heartbeat now; the counts so far are then in the run store.

        Args:
            leaving: it is the last one.

        Raises:
            RunStoreError: the run store does not answer.
        """
        with self._lock:
            idle, counts = time.monotonic() - self._last_heartbeat, self._counts
            try:
                reply = self.store.heartbeat(counts, self._gauges, idle, ready=self._ready, leaving=leaving)
            except NodeTakenError:
                self.replaced = True
                raise
        self.replaced = self.replaced or reply.get("replaced", False)
        self._totals, self._sent = reply["totals"], counts
        if reply["stop"]:
            self._stop.set()
        if self._ready and not reply["has_endpoint"]:  # The run store was started again, and those who join ask it.
            self.store.put(f"endpoint/{self.name}", self._endpoint)

    def close(self) -> None:
        """Sends the last counts and ends the heartbeats."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join(timeout=10.0)
        try:
            self.sync(leaving=True)
        except RunStoreError:
            return  # A run store that is gone counts no more.

    def _send_heartbeats(self) -> None:
        last_heard = time.monotonic()
        while not self._closed.wait(HEARTBEAT_SECONDS):
            try:
                self.sync()
                last_heard = time.monotonic()
            except (WrongRunError, NodeTakenError) as error:
                self.lost = True
                print(f"{self.name}: {error}", file=sys.stderr, flush=True)
                self._stop.set()
                return
            except RunStoreError as error:
                if time.monotonic() - last_heard > LOST_SECONDS and not self._stop.is_set():
                    self.lost = True
                    self._stop.set()
                    print(f"{self.name} stops: {error}", file=sys.stderr, flush=True)
                # The heartbeats go on: a run store that comes back sees that this node is about to save and leave.


def exit_after(seconds: float, stop: threading.Event, code: int, patience: Patience) -> None:
    """Ends this process `seconds` after `stop` was set, or when `patience` ends, if it has not ended by itself."""

    def watch() -> None:
        stop.wait()
        end = time.monotonic() + seconds
        while (left := max(end, patience.until) - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
        print(f"Still running {seconds:g} s after it was to stop: exits now.", file=sys.stderr, flush=True)
        os._exit(code)

    threading.Thread(target=watch, name="exit-after", daemon=True).start()
