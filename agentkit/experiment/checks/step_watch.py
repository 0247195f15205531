"""Ends what waits for an environment that has hung: a call of `step` or `reset` that takes too long is an error.

A thread looks. It makes the main thread raise `StepTimeoutError` wherever that is, so that the run ends as after any
other error; a main thread that does not hear it (in a call of C that never returns) is ended with its process. While a
call keeps the interpreter, no thread of Python's runs: a small process beside this one looks whether the thread lives.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from agentkit.envs import given
from agentkit.envs.workers import InWorker
from agentkit.errors import AgentkitError
from agentkit.experiment.checks.stand_in import StandIn

GRACE_SECONDS = 5.0
"""How long the main thread may take to raise the error."""

_SIGNAL: Any = getattr(signal, "SIGUSR2", None)  # Windows has none: there the main thread is not interrupted.

_BESIDE = """
import os, select, signal, sys
parent, seconds, text = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
silent = 0
while os.getppid() == parent and silent < seconds:
    if select.select([0], [], [], 1.0)[0]:
        if not os.read(0, 4096):
            sys.exit()
        silent = 0
        continue
    try:
        stopped = open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        stopped = False
    silent = 0 if stopped else silent + 1  # Seconds awake: a machine that slept has not hung.
if silent >= seconds and os.getppid() == parent:
    print(text, file=sys.stderr, flush=True)
    os.kill(parent, signal.SIGKILL)
"""


class StepTimeoutError(AgentkitError, TimeoutError):
    """Says that an environment has not returned from a call for too long."""


def environment_name(experiment: Any) -> str:
    """Returns what to call the environment of an `ExperimentConfig` in messages."""
    return given.name_of(experiment.environment)


class StepWatch:
    """Watches the calls of environments in the main thread; a context manager.

    In another thread than the main one, and on Windows, it says what has hung, and raises nothing: there is no way to
    interrupt such a thread.
    """

    def __init__(
        self, name: str, seconds: float, *, beside: bool = False, on_stuck: Callable[[str], None] | None = None
    ):
        """Makes a `StepWatch`, which watches nothing yet.

        Args:
            name: the environment's, for messages.
            seconds: that a call may take; 0 for any time.
            beside: whether to start the process that looks after calls which keep the interpreter; a launched node
                has its supervisor for that.
            on_stuck: called with the message before a process is ended whose main thread does not hear.
        """
        self._name, self._seconds, self._on_stuck = name, seconds, on_stuck
        self._with_process = beside and _SIGNAL is not None
        self._call: tuple[str, Callable[[], str]] | None = None
        self._message = ""
        self._awake = 0.0  # Seconds, without those in which this process was stopped or the machine slept.
        self._closed = threading.Event()
        self._main = _SIGNAL is not None and threading.current_thread() is threading.main_thread()
        self._previous: Any = None
        self._thread = threading.Thread(target=self._watch, name="step-watch", daemon=True)
        self._beside: subprocess.Popen[bytes] | None = None

    def watched(self, environment: Any) -> Any:
        """Returns the environment, whose calls are watched from now on."""
        if not self._seconds:
            return environment
        describe = getattr(environment, "describe_wait", str)  # Of a batch in workers: who has not answered.
        names = ("step", "reset", "recv") if hasattr(environment, "recv") else ("step", "reset")
        calls = {name: self._timed(getattr(environment, name), name, describe) for name in names}
        if not hasattr(environment, "describe_wait"):
            return StandIn(environment, **calls, close=self._timed(environment.close, "close", describe))
        # Closing workers takes a limited time anyway. Whoever asks one of their environments waits for its step, too.
        calls["get"] = self._timed(environment.get, "get", describe)
        if environment.num_ready is not None:
            calls |= self._tell_of_late(environment, self._timed(environment.recv, "recv", describe))
        watched = StandIn(environment, **calls)
        return StandIn(watched, environments=[InWorker(watched, i) for i in range(environment.num_envs)])

    def _tell_of_late(self, environment: Any, recv: Callable[[], Any]) -> dict[str, Callable[..., Any]]:
        """Returns calls of a batch that also tell of an environment which hangs while enough others are ready."""
        asked_at = np.full(environment.num_envs, np.inf)  # By `_awake`; infinite where nothing is waited for.

        def async_reset() -> None:
            environment.async_reset()
            asked_at[:] = self._awake

        def send(actions: Any, numbers: np.ndarray) -> None:
            environment.send(actions, numbers)
            asked_at[numbers] = self._awake

        def recv_none_late() -> Any:
            found = recv()
            asked_at[found[0]] = np.inf
            late = np.flatnonzero(asked_at < self._awake - self._seconds)
            if late.size and (who := environment.describe_silent(late)):
                raise StepTimeoutError(self._say("step()", who))
            return found

        return {"async_reset": async_reset, "send": send, "recv": recv_none_late}

    def make(self, make_environment: Callable[[], Any]) -> Any:
        """Returns the environment that a function makes, in the time that a call may take, and watches it from then on.

        Args:
            make_environment: the function, without arguments.
        """
        return self.watched(self._timed(make_environment, "make_environment", str)())

    def _timed(self, function: Callable[..., Any], name: str, describe: Callable[[], str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._call = (name, describe)
            try:
                return function(*args, **kwargs)
            finally:
                self._call = None

        return call

    def __enter__(self) -> StepWatch:
        if self._seconds:
            if self._with_process:  # Here and not in the thread: the first call may keep the interpreter from it.
                self._beside = self._start_beside()
            if self._main:
                self._previous = signal.signal(_SIGNAL, self._raise)
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        if self._seconds:
            self._thread.join(timeout=10.0)
            if self._beside is not None:
                with self._beside:  # Closes its input, at which it ends.
                    pass
            if self._main:
                signal.signal(_SIGNAL, self._previous)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._message:
            raise StepTimeoutError(self._message)

    def _watch(self) -> None:
        tick = min(1.0, self._seconds / 5)
        seen: tuple[str, Callable[[], str]] | None = None
        waited_from, last = 0.0, time.monotonic()
        while not self._closed.wait(tick):
            now = time.monotonic()
            self._awake += min(now - last, 2 * tick)  # Sleep of the machine, or Ctrl-Z, is no hang.
            last = now
            if self._beside is not None:
                with contextlib.suppress(OSError):
                    os.write(self._beside.stdin.fileno(), b".")  # type: ignore[union-attr]
            if self._call is not seen or seen is None:
                seen, waited_from = self._call, self._awake
            elif self._awake - waited_from > self._seconds:
                self._end(seen)
                seen = None

    def _start_beside(self) -> subprocess.Popen[bytes]:
        text = f"{self._say('a call')} It kept the interpreter meanwhile: the process is killed, and nothing saved."
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BESIDE, str(os.getpid()), str(self._seconds + GRACE_SECONDS), text],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, and would end the other with a traceback.
        )

    def _say(self, call: str, who: str = "") -> str:
        return (
            f"The environment {self._name} has not returned from {call} for {self._seconds:g} s: it hangs. "
            f"{f'Nothing came from {who}. ' if who else ''}Where its steps take that long, allow more: "
            "--step-timeout SECONDS, 0 for any time."
        )

    def _end(self, call: tuple[str, Callable[[], str]]) -> None:
        """Makes the main thread raise the error, or ends the process."""
        self._message = self._say(f"{call[0]}()", call[1]())
        if not self._main:
            print(self._message, file=sys.stderr, flush=True)
            return
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            if self._call is not call or self._closed.wait(0.05):
                return
        faulthandler.dump_traceback()
        print(self._message, file=sys.stderr, flush=True)
        if self._on_stuck is not None:
            self._on_stuck(self._message)
        os._exit(1)
