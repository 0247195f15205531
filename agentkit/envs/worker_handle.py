"""A worker's process, as the process that started it sees it."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn, final

from agentkit.child import environment_of_child, whom_to_die_with
from agentkit.envs.worker_process import CALL, CLOSE, DONE, ERROR, Failure, Ready
from agentkit.errors import AgentkitError

START_SECONDS = 300.0
"""How long a worker may take to make its environments."""

_CODE = "from agentkit.envs import worker_process; worker_process.main()"


@final
class EnvironmentWorkerError(AgentkitError, RuntimeError):
    """Says which environments' worker process has ended, or what one of its environments has raised."""


@final
class WorkerHandle:
    """Starts a worker's process, asks it, and ends it.

    Attributes:
        number: the worker's.
        share: the numbers of its environments.
        num_awaited: groups that it was asked to step or reset and has not answered for.
        has_failed: whether a step or reset has raised, so that its environments do not go together any more.
        is_called: whether `begin_call` has called a method whose result has not come.

    Args:
        number: the worker's.
        share: the numbers of its environments.
        descriptor: of the shared memory.
    """

    def __init__(self, number: int, share: range, descriptor: int):
        self.number = number
        self.share = share
        self.num_awaited = 0
        self.has_failed = False
        self.is_called = False
        self._asked_at = 0.0  # Monotonic seconds, of the latest request.
        self._unawaited: list[int] = []
        here, there = socket.socketpair()
        # What a terminal or a scheduler sends to all processes must not end it before it can hear and ignore that.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(whom_to_die_with()), str(there.fileno()), str(descriptor)],
                stdin=subprocess.DEVNULL,
                pass_fds=(there.fileno(), descriptor),
                env=environment_of_child(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            there.close()
        self._connection = Connection(here.detach())

    @property
    def process_id(self) -> int:
        """Returns the process's id."""
        return self._process.pid

    def fileno(self) -> int:
        """Returns the descriptor that can be read when it has answered, or ended."""
        return self._connection.fileno()

    def describe(self) -> str:
        """Returns its environments, its number and its process, for messages."""
        first, last = self.share.start, self.share.stop - 1
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"{which} (worker {self.number}, process {self.process_id})"

    def is_silent(self) -> bool:
        """Returns whether something was asked, and nothing has been answered that was not read yet."""
        return (self.num_awaited > 0 or self.is_called) and not self._connection.poll(0.0)

    def silent_seconds(self) -> float:
        """Returns how long ago it was asked, if `is_silent`; else 0."""
        return time.monotonic() - self._asked_at if self.is_silent() else 0.0

    def send(self, message: bytes) -> None:
        """Sends a message.

        Raises:
            EnvironmentWorkerError: the worker has ended; what it said last is raised, if it did.
        """
        try:
            self._connection.send_bytes(message)
        except ConnectionError:
            self._raise_what_it_said()

    def request(self, request: bytes, groups: Sequence[int]) -> None:
        """Asks it to step or reset groups, for each of which `receive_done` is to be called."""
        self.send(request + bytes(groups))
        self.num_awaited += len(groups)
        self._asked_at = time.monotonic()

    def receive_done(self) -> int:
        """Waits for a group that has been stepped; returns its number in the worker."""
        message = self._receive()
        self.num_awaited -= 1
        return message[1]

    def take_unawaited_replies(self) -> list[int]:
        """Removes and returns the groups whose replies arrived while another was awaited."""
        taken, self._unawaited = self._unawaited, []
        self.num_awaited -= len(taken)
        return taken

    def receive_ready(self) -> Ready:
        """Waits until its environments have been made.

        Raises:
            EnvironmentWorkerError: one could not be made. Errors of agentkit's are raised as they are.
        """
        if not self._connection.poll(START_SECONDS):
            raise EnvironmentWorkerError(f"The {self.describe()} could not be made within {START_SECONDS:g} s.")
        ready: Ready = self.receive_value()
        return ready

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of `worker_process.Worker`, by its name without the underscore, and waits for the result."""
        self.begin_call(method, arguments)
        return self.receive_value()

    def begin_call(self, method: str, arguments: Sequence[Any]) -> None:
        """Calls as `call` does; `receive_value` gives the result."""
        self.send(CALL + pickle.dumps((method, tuple(arguments))))
        self.is_called = True
        self._asked_at = time.monotonic()

    def receive_value(self) -> Any:
        """Waits for the result of `begin_call`."""
        while (message := self._receive())[:1] == DONE:  # Of a group that is ready in the meantime.
            self._unawaited.append(message[1])
        self.is_called = False
        return pickle.loads(message[1:])

    def _receive(self) -> bytes:
        try:
            message = self._connection.recv_bytes()
        except (EOFError, ConnectionError):  # No OSError: what says that a step takes too long is one, too.
            raise self._ended() from None
        if message[:1] == ERROR:
            self._raise(pickle.loads(message[1:]))
        return message

    def _raise_what_it_said(self) -> NoReturn:
        """Raises what a worker has said before it ended."""
        while True:
            self._receive()  # The last thing to be found is that it has ended.

    def _raise(self, failure: Failure) -> None:
        if failure.call in ("step", "reset"):
            self.num_awaited, self.has_failed = 0, True
        else:
            self.is_called = False
        if failure.error is not None:
            raise failure.error
        one = f"Environment {failure.number} (worker {self.number}, process {self.process_id})"
        who = self.describe().capitalize() if failure.number is None else one
        error = EnvironmentWorkerError(f"{who} raised in {failure.call}: {failure.summary}")
        error.add_note(f"In the worker:\n{failure.text}")
        raise error

    def _ended(self) -> EnvironmentWorkerError:
        self.num_awaited, self.is_called = 0, False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        code = self._process.returncode
        how = f"ended with exit code {code}"
        if code is None:
            how = "no longer answers"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        advice = {
            -signal.SIGKILL: " Where nobody sent that, the system did, for want of memory.",
            -signal.SIGSEGV: " That is an error of the simulator's.",
        }.get(code, "")
        return EnvironmentWorkerError(f"The worker process of {self.describe()} {how}.{advice}")

    def begin_close(self) -> None:
        """Lets it close its environments and end, when it has done what it was asked before."""
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(CLOSE)

    def wait(self, seconds: float) -> None:
        """Waits for its end, no longer than this."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """Ends it, if it has not ended. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._connection.close()
