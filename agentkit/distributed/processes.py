"""The engine of processes on this machine: each node is a new interpreter, never a fork."""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, final

import cloudpickle

from agentkit.distributed.program import Node, Role
from agentkit.distributed.worker import RunAddress

_CHILD = "from agentkit.distributed import worker; worker.exit_with(worker.main())"


@final
class RunningProcess:
    """Watches and stops a node's process."""

    def __init__(self, process: subprocess.Popen[bytes]):
        """Wraps a process that leads a session of its own."""
        self._process = process
        self.pid: int | None = process.pid

    def poll(self) -> int | None:
        """Returns its exit code (negative: the signal that killed it); None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Asks the node to save and stop (SIGTERM)."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends the node and all that it has started (SIGKILL), also when it is stopped."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
            self._process.wait(timeout=10.0)


@final
class ProcessEngine:
    """Starts nodes as processes that die with this one.

    A node's standard output and error go to ``RUN/nodes/<name>.log``, or to this process's own where
    the run has no folder.

    Attributes:
        store_host: where the run store listens: this machine alone.
    """

    store_host = "127.0.0.1"

    def start(self, node: Node, role: Role, run_address: RunAddress) -> RunningProcess:
        """Starts a node.

        Raises:
            TypeError, PicklingError: its function or arguments cannot be sent to another process.
        """
        message = pickle.dumps((cloudpickle.dumps(node), run_address))
        log = _open_log(node.name, run_address)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT if log is not None else None,
                env=_environment(role.environment),
                start_new_session=True,  # Ctrl-C at the terminal reaches the supervisor alone.
            )
        finally:
            if log is not None:
                log.close()
        assert process.stdin is not None
        try:
            process.stdin.write(message)
            process.stdin.close()
        except BrokenPipeError:
            pass  # It has died already; poll says so.
        return RunningProcess(process)

    def close(self) -> None:
        """Frees nothing: the supervisor ends the processes."""


def _open_log(name: str, run_address: RunAddress) -> IO[bytes] | None:
    if run_address.run_directory is None:
        return None
    folder = pathlib.Path(run_address.run_directory) / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    return open(folder / f"{name}.log", "ab", buffering=0)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's variables with the role's; modules are found where they are found here."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
    here = [path for path in sys.path if path]
    environment["PYTHONPATH"] = os.pathsep.join(here)
    return environment
