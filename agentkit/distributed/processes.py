"""The engine of processes on this machine: each node is a new interpreter, never a fork."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, final

import cloudpickle

from agentkit.distributed.guard import Guard
from agentkit.distributed.program import Node, Role
from agentkit.distributed.pulse import cpu_seconds
from agentkit.distributed.worker import RunAddress
from agentkit.files import open_to_append

_CHILD = "from agentkit.distributed import worker; worker.exit_with(worker.main())"


@final
class RunningProcess:
    """Watches and stops a node's process, and ends with it what it has started."""

    def __init__(self, process: subprocess.Popen[bytes], guard: Guard):
        """Wraps a process that leads a session of its own; `guard` ends it if nobody here can."""
        self._process = process
        self._guard = guard
        self.pid: int | None = process.pid
        guard.add(process.pid)

    def poll(self) -> int | None:
        """Returns its exit code (negative: the signal that killed it); None while it runs."""
        if self._process.returncode is None and self._is_dead():
            self._kill_group()
        return self._process.poll()

    def terminate(self) -> None:
        """Asks the node to save and stop (SIGTERM)."""
        if self.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends the node and all that it has started (SIGKILL), also when it is stopped."""
        if self._process.returncode is None:
            self._kill_group()
            with contextlib.suppress(subprocess.TimeoutExpired):  # It ends when its call to a disk or a GPU returns.
                self._process.wait(timeout=10.0)

    def cpu_seconds(self) -> float | None:
        """Returns the processor time that it has used."""
        return cpu_seconds(self._process.pid)

    def _is_dead(self) -> bool:
        """Returns whether it has ended and nobody has asked how: until then its number is no other process's."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: there asking frees the number, for a later process.
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.discard(self._process.pid)


@final
class ProcessEngine:
    """Starts nodes as processes that die with this one.

    A node's standard output and error go to ``RUN/nodes/<name>.log``, or to this process's own where
    the run has no folder.

    Attributes:
        store_host: where the run store listens: this machine alone.
    """

    store_host = "127.0.0.1"

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._guard: Guard | None = None

    def start(self, node: Node, role: Role, run_address: RunAddress) -> RunningProcess:
        """Starts a node.

        Raises:
            TypeError, PicklingError: its function or arguments cannot be sent to another process.
        """
        message = pickle.dumps((cloudpickle.dumps(node), run_address))
        self._guard = self._guard or Guard(os.getpid())
        log = _open_log(node.name, run_address)
        with contextlib.nullcontext() if log is None else log:
            return start_process(_CHILD, message, self._guard, log, role.environment)

    def close(self) -> None:
        """Ends the guard; the supervisor has ended the nodes."""
        if self._guard is not None:
            self._guard.close()
            self._guard = None


def start_process(
    code: str, message: bytes, guard: Guard, log: IO[bytes] | None, environment: Mapping[str, str]
) -> RunningProcess:
    """Starts a new interpreter in a session of its own, where Ctrl-C at the terminal does not reach it.

    Args:
        code: what it runs; ``sys.argv[1]`` is this process's id, for `child.die_with`.
        message: what it finds on its standard input.
        guard: ends what it has started where nobody here can.
        log: takes its standard output and error; None for this process's own.
        environment: variables beside those of this process.
    """
    with _open_memory() as given:  # Not a pipe, which a child that stands still would leave full.
        given.write(message)
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(os.getpid())],
            stdin=given,
            stdout=log,
            stderr=subprocess.STDOUT if log is not None else None,
            env=_environment(environment),
            start_new_session=True,
        )
    return RunningProcess(process, guard)


def _open_log(name: str, run_address: RunAddress) -> IO[bytes] | None:
    if run_address.run_directory is None:
        return None
    folder = pathlib.Path(run_address.run_directory) / "nodes"
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:  # Somebody has removed the run folder: none is made anew.
        return None
    return open_to_append(folder / f"{name}.log")  # The folder may be a stranger's, with a pipe there.


def _open_memory() -> IO[bytes]:
    """Opens a file of no disk, where the system has such."""
    return os.fdopen(os.memfd_create("node"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's variables with the role's; modules are found where they are found here."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
    here = [path for path in sys.path if path]
    environment["PYTHONPATH"] = os.pathsep.join(here)
    return environment
