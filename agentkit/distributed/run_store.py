"""The store of a run: addresses, heartbeats, counts and the word to stop, in one place all nodes reach.

It is a server on the wire, whose keys follow from the run id: that is a secret, and also tells two runs apart. The
supervisor hosts it; so does ``agentkit node replay`` where a scheduler starts the nodes. A client reconnects by itself,
so a run store may be restarted on its port. Decision 14 says why nodes meet here and not on replay's server.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from agentkit.distributed.run_store_client import from_body, to_body
from agentkit.errors import ConfigError
from agentkit.wire import Request, Server, check_secret, derive_keys

SILENT_SECONDS = 3.0
"""A node that joined by itself and was not heard of for this long may be replaced by another of its name."""

MAX_MESSAGE = 1 << 20
"""The longest message to the run store, bytes."""

_MAX_COUNT = 1 << 62
_LOOK_SECONDS = 0.1


class _TakenError(Exception):
    """Says that another process has a node's name."""


class RunStore:
    """Holds the messages of a run's nodes to each other. Thread-safe; a context manager.

    Attributes:
        address: "host:port".
        commands: what clients asked for, as ``(name, arguments)``, for the supervisor to take.
    """

    def __init__(self, run_id: str, *, host: str = "127.0.0.1", port: int = 0, program: str = ""):
        """Starts to listen.

        Args:
            run_id: the run's secret.
            host: address to listen on; "127.0.0.1" is this machine alone.
            port: 0 finds a free one.
            program: a name for people.

        Raises:
            ConfigError: the port is taken, `host` is not an address of this machine, or `run_id` can be guessed.
        """
        check_secret(run_id)
        self._lock = threading.Condition()
        self._values: dict[str, Any] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._totals: dict[str, int] = {}  # kept up to date: summing 1,000 nodes at each heartbeat takes a core
        self._saved: dict[str, dict[str, Any]] = {}  # by node: who had counted what when the totals were saved
        self._stopped_nodes: set[str] = set()
        self._stop_reason: str | None = None
        self._started = time.time()
        self._program = program
        self.commands: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()  # Signal handlers fill it.
        try:
            self._server = Server(f"tcp://{host}:{port or '*'}", derive_keys(run_id))
        except ConfigError as error:
            raise ConfigError(f"The run store cannot listen on {host}:{port}. {error}") from error
        self.address = self._server.address.removeprefix("tcp://")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="agentkit-run-store", daemon=True)
        self._thread.start()

    # --- for the process that hosts it -----------------------------------------------------------

    def put(self, key: str, value: Any) -> None:
        """Sets a value (anything that JSON has); None forgets it."""
        with self._lock:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            self._lock.notify_all()

    def get(self, key: str, timeout: float = 0.0) -> Any:
        """Returns a value, waited for up to `timeout` seconds; None if there is none."""
        with self._lock:
            self._lock.wait_for(lambda: key in self._values or self._stop_reason is not None, timeout)
            return self._values.get(key)

    def node(self, name: str, **changes: Any) -> None:
        """Notes the supervisor's knowledge of a node: state, pid, restarts, last_error, ..."""
        with self._lock:
            self._nodes.setdefault(name, _new_node(name)).update(changes)

    def last_heartbeat(self, name: str) -> tuple[int, float, float] | None:
        """Returns incarnation, seconds since the last heartbeat, and seconds that the main loop was idle by then."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node["beat_time"] is None:
                return None
            return node["incarnation"], time.monotonic() - node["beat_time"], node["idle_seconds"]

    def totals(self) -> dict[str, int]:
        """Returns each count, summed over all nodes and their incarnations."""
        with self._lock:
            return dict(self._totals)

    def save_counts(self) -> dict[str, Any]:
        """Returns the totals, and what each process that joined by itself had counted of them by then.

        Such a process may outlive the run store; what it has counted is then not added again.
        """
        with self._lock:
            counted = {
                name: {"process": node["process"], "counts": _sum(node["saved"], node["counts"])}
                for name, node in self._nodes.items()
                if node["process"] is not None and not node["supervised"]
            }
            return {"totals": dict(self._totals), "counted": counted}

    def restore_counts(self, totals: Mapping[str, int], counted: Mapping[str, Any] | None = None) -> None:
        """Starts counting from a checkpoint's totals, before any node beats.

        Args:
            totals: by name.
            counted: of `save_counts`, at the same time as `totals`; None where every process begins anew.
        """
        with self._lock:
            self._totals = {name: int(value) for name, value in totals.items()}
            self._saved = {name: dict(value) for name, value in (counted or {}).items()}

    def stop(self, reason: str) -> None:
        """Says that the program stops; the first reason is kept.

        Nodes that joined by themselves are told so at once; supervised ones by `stop_node`, in their order.
        """
        with self._lock:
            self._stop_reason = self._stop_reason or reason
            self._lock.notify_all()

    @property
    def stop_reason(self) -> str | None:
        """Returns why the program stops; None while it runs."""
        return self._stop_reason

    def stop_node(self, name: str) -> None:
        """Tells one node to stop."""
        with self._lock:
            self._stopped_nodes.add(name)

    def allow_node(self, name: str) -> None:
        """Takes `stop_node` back, before the node is started again."""
        with self._lock:
            self._stopped_nodes.discard(name)

    def forget_node(self, name: str) -> None:
        """Forgets a node that is no longer wanted, with what it has said; its counts stay, and that it was here."""
        with self._lock:
            self._nodes.pop(name, None)
            if f"endpoint/{name}" in self._values:
                self._values[f"left/{name}"] = True
            for kind in ("endpoint", "error", "busy"):  # A later node of its name begins with incarnation 0 again.
                self._values.pop(f"{kind}/{name}", None)

    def status(self) -> dict[str, Any]:
        """Returns all there is, as plain values."""
        with self._lock:
            now = time.monotonic()
            return {
                "program": self._program,
                "started": self._started,
                "stop": self._stop_reason,
                "totals": dict(self._totals),
                "values": dict(self._values),
                "nodes": {name: _public(node, now) for name, node in self._nodes.items()},
            }

    def close(self) -> None:
        """Stops listening and drops every connection. May be called twice."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- for its clients -------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closed.is_set():
            request = self._server.receive(_LOOK_SECONDS)
            if request is not None:
                self._reply(request)
        self._server.close()

    def _reply(self, request: Request) -> None:
        try:
            if request.body.nbytes > MAX_MESSAGE:
                raise ValueError(f"{request.body.nbytes} bytes, at most {MAX_MESSAGE} are taken")
            self._server.answer(request, to_body(self._answer(from_body(request.body))))
        except _TakenError as error:
            self._server.refuse(request, str(error), "taken")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            self._server.refuse(request, f"malformed message: {error!r}", "malformed")

    def _answer(self, message: dict[str, Any]) -> Any:
        """Does what one message asks for."""
        what = message.get("do")
        if what == "get":
            return self.get(str(message["key"]))
        if what == "put":
            self.put(str(message["key"]), message["value"])
            return None
        if what == "beat":
            return self._heartbeat(message)
        if what == "claim":
            return self._claim(message)
        if what == "status":
            return self.status()
        if what == "save counts":
            return self.save_counts()
        if what == "command":
            self.commands.put((str(message["name"]), dict(message["arguments"])))
            return None
        raise ValueError(f"unknown message {what!r}")

    def _claim(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Gives a name to a node that joins by itself; who has it, if somebody does and lives."""
        name, life = str(message["node"]), str(message["life"])
        with self._lock:
            node = self._nodes.setdefault(name, _new_node(name))
            silence = math.inf if node["beat_time"] is None else time.monotonic() - node["beat_time"]
            taken = node["supervised"] or (node["state"] != "done" and silence < SILENT_SECONDS)
            if taken and node["life"] != life:
                return {"host": node["host"], "pid": node["pid"], "beat_age_seconds": silence}
            node.update(life=life, state="joined", beat_time=time.monotonic())
            node.update(host=str(message["host"]), pid=int(message["pid"]))
            return None

    def _heartbeat(self, message: dict[str, Any]) -> dict[str, Any]:
        beat = _checked(message)
        name, life, process = beat["node"], beat["life"], beat["process"]
        with self._lock:
            node = self._nodes.setdefault(name, _new_node(name))
            if not node["supervised"] and node["life"] not in (None, life):
                raise _TakenError(_describe_taken(name, node))
            if node["supervised"] and beat["incarnation"] < node["incarnation"]:
                # Its successor runs: it is counted no more.
                return {**self._reply_to_beat(name, stop=True), "replaced": True}
            if process != node["process"]:
                node["past"] = _sum(node["past"], node["counts"])  # It began anew: what it had counted stays counted.
                node["counts"] = {}
                saved = self._saved.pop(name, {})
                node["saved"] = saved["counts"] if saved.get("process") == process else {}
            beat["counts"] = {key: value - node["saved"].get(key, 0) for key, value in beat["counts"].items()}
            for key, value in beat["counts"].items():
                self._totals[key] = self._totals.get(key, 0) + value - node["counts"].get(key, 0)
            for key in ("process", "pid", "host", "gauges", "idle_seconds", "incarnation", "counts", "life"):
                node[key] = beat[key]
            node["beat_time"] = time.monotonic()
            if not node["supervised"]:
                node["state"] = "done" if message["leaving"] else "ready" if message["ready"] else "joined"
            stop = name in self._stopped_nodes or (self._stop_reason is not None and not node["supervised"])
            return self._reply_to_beat(name, stop)

    def _reply_to_beat(self, name: str, stop: bool) -> dict[str, Any]:
        return {"stop": stop, "totals": dict(self._totals), "has_endpoint": f"endpoint/{name}" in self._values}


def _checked(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a beat as what they must be: what is stored here, the supervisor calculates with.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: a part is missing, or none such.
    """
    counts = {str(key): int(value) for key, value in message["counts"].items()}
    gauges = {str(key): value for key, value in message["gauges"].items()}
    idle, life = float(message["idle_seconds"]), message.get("life")
    if not 0.0 <= idle < math.inf or any(abs(value) > _MAX_COUNT for value in counts.values()):
        raise ValueError(f"idle_seconds {idle}, counts {counts}")
    if not all(isinstance(value, int | float) for value in gauges.values()):
        raise TypeError(f"gauges {gauges}")
    return {
        "node": str(message["node"]),
        "incarnation": int(message["incarnation"]),
        "process": str(message["process"]),
        "pid": int(message["pid"]),
        "host": str(message["host"]),
        "life": None if life is None else str(life),
        "counts": counts,
        "gauges": gauges,
        "idle_seconds": idle,
    }


def _describe_taken(name: str, node: Mapping[str, Any]) -> str:
    return f"process {node['pid']} on {node['host']} is {name} now"


def _new_node(name: str) -> dict[str, Any]:
    """Returns the entry of a node that joins by itself; the supervisor's own have their state set by it."""
    role, _, index = name.rpartition("-")
    return {
        "role": role or name,
        "index": int(index) if index.isdigit() else 0,
        "state": "joined",
        "unsaved": False,
        "supervised": False,
        "pid": None,
        "host": None,
        "restarts": 0,
        "incarnation": 0,
        "life": None,
        "process": None,
        "beat_time": None,
        "idle_seconds": 0.0,
        "counts": {},
        "past": {},
        "saved": {},
        "gauges": {},
        "last_error": None,
    }


def _public(node: dict[str, Any], now: float) -> dict[str, Any]:
    hidden = ("beat_time", "past", "saved", "process", "life")
    age = None if node["beat_time"] is None else now - node["beat_time"]
    counts = _sum(node["past"], node["counts"])
    return {k: v for k, v in node.items() if k not in hidden} | {"beat_age_seconds": age, "counts": counts}


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: some.get(name, 0) + others.get(name, 0) for name in (*some, *others)}
