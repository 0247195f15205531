"""A sampler's process of its own on this machine, and what it runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import NoReturn, final

from agentkit.child import die_with, environment_of_child, whom_to_die_with
from agentkit.experiment.evaluation.remote_sampler import SamplerProcessError, SamplingServer

_CODE = "from agentkit.experiment.evaluation import sampler_process; sampler_process.main()"
_END_SECONDS = 10.0


@final
class ProcessChannel:
    """Starts a new interpreter in which a `SamplingServer` answers; it ends with this one."""

    def __init__(self) -> None:
        """Starts it."""
        here, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(whom_to_die_with()), str(there.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
                env=environment_of_child(),
                start_new_session=True,  # Ctrl-C at a terminal is for the owner, who closes it.
            )
        self._connection = Connection(here.detach())

    @property
    def process_id(self) -> int:
        """Returns the process's id."""
        return self._process.pid

    def ask(self, message: bytes) -> bytes:
        """Returns the answer; see `Channel`."""
        if self._connection.closed:
            raise SamplerProcessError(
                f"The sampler's process {self.process_id} was closed, or left in the middle of an answer, as by "
                "Ctrl-C. Make the sampler anew."
            )
        try:
            self._connection.send_bytes(message)
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            self._process.wait(_END_SECONDS)
            code = self._process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise SamplerProcessError(
                f"The sampler's process {self.process_id} {how}. Make the sampler anew."
            ) from None
        except BaseException:  # The answer is still to come, and would be the next question's.
            self._connection.close()
            raise

    def close(self) -> None:
        """Ends the process; see `Channel`."""
        self._connection.close()  # It hears that nobody asks any more.
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> NoReturn:
    """Runs a server; its arguments are whom to die with (0 for nobody), and the descriptor of its socket."""
    parent, descriptor = map(int, sys.argv[1:])
    if parent:
        die_with(parent)
    server = SamplingServer()
    with Connection(descriptor) as connection:
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, ConnectionError):
                break
            connection.send_bytes(server.answer(message))
        server.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Simulators' threads can hold up an orderly end for ever.
