"""The engine of Ray actors: nodes on any machine of a Ray cluster.

Ray is optional; `ray_cluster` imports it. Where the machines are is Ray's business; when a node is
restarted is the supervisor's: Ray restarts none of them.

What protects it: whoever may use Ray's ports runs code. A Ray of the engine's own listens on loopback alone. A
cluster's ports are open on every interface, and its token is what keeps strangers out. The engine turns it on
(``RAY_AUTH_MODE=token``), and makes one for a Ray of its own. On a cluster give every machine the same token, in
``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``, and keep the cluster on a private network:
token and run id travel unencrypted unless Ray's TLS is set up. The run store listens on this machine's cluster address.

The head of a cluster is the one part that it cannot lose: when it dies, the program dies.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, final

import cloudpickle

from agentkit.distributed.program import Node, Role
from agentkit.distributed.pulse import cpu_seconds
from agentkit.distributed.ray_cluster import check_address, check_fits, check_same, connect, import_ray, start_private
from agentkit.distributed.worker import EXIT_FATAL, RunAddress, run_pickled
from agentkit.errors import ConfigError
from agentkit.files import open_to_append
from agentkit.scratch import remove_scratch

_KILLED = -int(signal.SIGKILL)
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.05


@final
class RayEngine:
    """Runs each node as a Ray actor in a process of its own.

    A node goes to a machine that has the CPUs, GPUs and other resources its role asks for. Its output goes to
    ``RUN/nodes/<name>.log``, as that machine sees the folder; without a folder it stays in Ray's session logs.
    All machines need the same Python, agentkit and Ray, and the modules that the nodes' functions come from.

    Attributes:
        store_host: where the run store listens: an address of this machine that the cluster reaches.
        confined: whether Ray's own servers listen on loopback alone.
    """

    store_host: str
    confined: bool

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: int | None = None,
        autoscaling: bool = False,
    ):
        """Connects to a cluster, or starts a Ray of its own on this machine.

        Ray reads its environment variables once per process, so they stay set after `close`.

        Args:
            address: "host:port" of a cluster's head; this machine must be part of the cluster. None starts a
                private Ray, which ends with `close`, or within seconds of this process (but for two of Ray's
                agents, which take a minute after kill -9).
            num_cpus: CPUs that a private Ray shares out; None lets any number of nodes share the cores.
            autoscaling: the cluster adds machines when they are asked for: do not refuse what does not fit
                the machines there are.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: no such cluster, a wrong token, or this process is in another cluster already.
        """
        self._ray = import_ray()
        self._actor_class = self._ray.remote(_NodeActor)
        self._running: list[RunningActor] = []
        self._folder: pathlib.Path | None = None
        self._counts_cpus = address is not None or num_cpus is not None
        self._autoscaling = autoscaling
        if address is not None:
            if num_cpus is not None:
                raise ConfigError("num_cpus is of a private Ray; a cluster has its own.")
            check_address(address)
        namespace = f"agentkit-{uuid.uuid4().hex}"
        self._owns_connection = not self._ray.is_initialized()
        if not self._owns_connection:
            check_same(self._ray, address)
        elif address is None:
            self._folder = start_private(self._ray, namespace, num_cpus)
        else:
            connect(self._ray, address, namespace)
        own_address = self._ray.util.get_node_ip_address()
        self.confined = own_address == "127.0.0.1"  # Where a newer Ray does not heed what `start_private` asked for.
        self.store_host = "127.0.0.1" if address is None else own_address
        self._here = self._ray.get_runtime_context().get_node_id()

    def start(self, node: Node, role: Role, run_address: RunAddress) -> RunningActor:
        """Starts a node; returns before Ray has found a place for it.

        Raises:
            ConfigError: the cluster cannot hold it. A restarted node waits for a machine instead, until its
                role's `start_seconds` are over.
            TypeError, PicklingError: its function or arguments cannot be sent to another process.
        """
        demand = self._demand(role)
        if run_address.incarnation == 0 and not self._autoscaling:
            alive = [running for running in self._running if running.poll() is None]
            check_fits(self._ray, role.name, demand, [running.demand for running in alive])
        message = cloudpickle.dumps(node)
        options = {
            "num_cpus": demand.get("CPU", 0.0),
            "num_gpus": demand.get("GPU", 0.0),
            "resources": dict(role.resources),
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": dict(role.environment)} if role.environment else None,
        }
        actor = self._actor_class.options(**options).remote()
        place = actor.place.remote()
        result = actor.run.remote(message, node.name, run_address, [path for path in sys.path if path])
        running = RunningActor(actor, place, result, (node.name, run_address, demand, self._here))
        self._running = [other for other in self._running if other.is_running] + [running]
        return running

    def close(self) -> None:
        """Kills nodes that still run; ends a private Ray, leaves a cluster. May be called twice."""
        if self._ray.is_initialized():
            for running in self._running:
                running.kill()
            if self._owns_connection:
                self._ray.shutdown()
        self._running = []
        if self._folder is not None:
            remove_scratch(self._folder)

    def _demand(self, role: Role) -> dict[str, float]:
        cpus = role.num_cpus if self._counts_cpus else 0.0
        wanted = {"CPU": cpus, "GPU": role.num_gpus, **role.resources}
        return {name: float(amount) for name, amount in wanted.items() if amount > 0}


@final
class RunningActor:
    """Watches and stops a node's Ray actor.

    Attributes:
        pid: of its process, on whatever machine that is; None until it runs.
        machine: Ray's id of that machine; None until it runs.
        demand: what it holds of the cluster, by resource.
    """

    def __init__(self, actor: Any, place: Any, result: Any, about: tuple[str, RunAddress, dict[str, float], str]):
        """Wraps an actor and the references to where it is and how it ends."""
        self._ray = import_ray()
        self._actor, self._place, self._result = actor, place, result
        self._name, self._launch, self.demand, self._here = about
        self._code: int | None = None
        self.pid: int | None = None
        self.machine: str | None = None

    @property
    def is_running(self) -> bool:
        """Returns False once `poll` has returned a code."""
        return self._code is None

    def poll(self) -> int | None:
        """Returns its exit code, -9 where its process or machine died; None while it runs or waits for a place."""
        if self._code is None:
            self._find_place()
            if self._is_there(self._result):
                self._code = self._end()
        return self._code

    def terminate(self) -> None:
        """Asks the node to save and stop (SIGTERM); kills it where it does not run yet."""
        if self.poll() is not None:
            return
        if self.pid is None:
            self._ray.kill(self._actor, no_restart=True)
        else:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the node (SIGKILL), also when it is stopped or its machine does not answer."""
        if self.poll() is not None:
            return
        # Ray asks the process to exit, which a stopped one does not hear.
        signalled = None if self.pid is None else self._signal(signal.SIGKILL)
        self._ray.kill(self._actor, no_restart=True)
        waited_for = [self._result] if signalled is None else [self._result, signalled]
        self._ray.wait(waited_for, num_returns=len(waited_for), timeout=_KILL_SECONDS)
        self._await_end()
        self._code = _KILLED

    def cpu_seconds(self) -> float | None:
        """Returns the processor time of its process, where that is this machine's."""
        return None if self.pid is None or self.machine != self._here else cpu_seconds(self.pid)

    def _is_there(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _find_place(self) -> None:
        if self.pid is None and self._is_there(self._place):
            with contextlib.suppress(self._ray.exceptions.RayError):  # It has died; its result says so, too.
                self.pid, self.machine = self._ray.get(self._place, timeout=_KILL_SECONDS)

    def _end(self) -> int:
        try:
            code = int(self._ray.get(self._result, timeout=_KILL_SECONDS))
        except self._ray.exceptions.RayTaskError as error:
            self._note(f"The node could not be run: {error}")
            code = EXIT_FATAL  # What the node itself raises does not come this way.
        except self._ray.exceptions.RayError as error:
            self._note(f"Ray says: {error}")
            code = _KILLED
        self._ray.kill(self._actor, no_restart=True)
        self._await_end()
        return code

    def _await_end(self) -> None:
        """Waits until its process is gone, where that is this machine's: what it held, as a port, is free then."""
        if self.pid is None or self.machine != self._here:
            return
        _await_end_of(self.pid)

    def _signal(self, number: signal.Signals) -> Any:
        """Signals the node's process; where that is another machine's, the reference to when it is done."""
        assert self.pid is not None
        if self.machine == self._here:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            return None
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.machine, soft=False)
        task = self._ray.remote(_send_signal).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        return task.remote(self.pid, int(number))

    def _note(self, text: str) -> None:
        """Adds a line to the node's log, as far as this machine sees it."""
        path = _log_path(self._name, self._launch)
        if path is not None and path.parent.is_dir():
            with contextlib.suppress(OSError, ConfigError), open_to_append(path) as log:
                log.write(f"{text}\n".encode())


class _NodeActor:
    """What runs in a node's process. Its calls come in the main thread, where signals arrive."""

    def place(self) -> tuple[int, str]:
        return os.getpid(), import_ray().get_runtime_context().get_node_id()

    def run(self, message: bytes, name: str, run_address: RunAddress, search_path: Sequence[str]) -> int:
        """Runs a node as `worker.main` does, but for where the node comes from and its output goes."""
        _log_to(_log_path(name, run_address))
        sys.path.extend(path for path in search_path if path not in sys.path)
        code = run_pickled(message, run_address)
        sys.stdout.flush()
        sys.stderr.flush()
        return code


def _await_end_of(pid: int) -> None:
    """Waits until a process of this machine has ended, `_KILL_SECONDS` at most."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "pidfd_open"):
            process = os.pidfd_open(pid)
            try:
                select.select([process], [], [], _KILL_SECONDS)
            finally:
                os.close(process)
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:  # macOS
            os.kill(pid, 0)  # Raises once nobody has this number.
            time.sleep(_LOOK_SECONDS)


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _log_path(name: str, run_address: RunAddress) -> pathlib.Path | None:
    folder = run_address.run_directory
    return None if folder is None else pathlib.Path(folder) / "nodes" / f"{name}.log"


def _log_to(path: pathlib.Path | None) -> None:
    """Sends this process's output to a file; where it cannot be made, it stays in Ray's logs."""
    if path is None:
        return
    with contextlib.suppress(OSError, ConfigError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(path) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
