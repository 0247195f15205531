"""A sampler's worker in a process of its own, as its owner sees it, and what that process runs."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn, final

import cloudpickle
import jax
import numpy as np

from agentkit.child import die_with, environment_of_child, whom_to_die_with
from agentkit.errors import AgentkitError
from agentkit.experiment.evaluation.samples import Samples
from agentkit.experiment.evaluation.sampling_worker import SamplingWorker, find_acting
from agentkit.types import Nest

_CODE = "from agentkit.experiment.evaluation import sampler_process; sampler_process.main()"
_END_SECONDS = 10.0


@final
class SamplerProcessError(AgentkitError, RuntimeError):
    """Says that a sampler's process has ended, or what was raised in it."""


@final
class SamplerProcess:
    """Starts a `SamplingWorker` in a new interpreter and asks it; the process ends with this one."""

    def __init__(self, source: Any, checkpoint: str | int, options: dict[str, Any], **settings: Any):
        """Starts it, and waits until its environments are made; the arguments are those of `sampling.Sampler`."""
        message = cloudpickle.dumps((source, checkpoint, options, settings))
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
        try:
            self._ask(message)
        except BaseException:
            self.close()
            raise

    @property
    def process_id(self) -> int:
        """Returns the process's id."""
        return self._process.pid

    def sample(self, num_steps: int | None = None, num_episodes: int | None = None) -> Samples:
        """See `sampling.Sampler.sample`."""
        found: Samples = self._ask(pickle.dumps(("sample", (num_steps, num_episodes))))
        return found

    def set_parameters(self, parameters: Nest) -> None:
        """See `sampling.Sampler.set_parameters`."""
        self._ask(pickle.dumps(("set_parameters", (jax.tree.map(np.asarray, parameters),))))

    def _ask(self, message: bytes) -> Any:
        try:
            self._connection.send_bytes(message)
            is_error, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._process.wait(_END_SECONDS)
            code = self._process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise SamplerProcessError(
                f"The sampler's process {self.process_id} {how}. Make the sampler anew."
            ) from None
        if is_error:
            raise value
        return value

    def close(self) -> None:
        """Ends the process, which closes its environments first if it can within seconds."""
        self._connection.close()  # It hears that nobody asks any more.
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> NoReturn:
    """Runs a worker; its arguments are whom to die with (0 for nobody), and the descriptor of its socket."""
    parent, descriptor = map(int, sys.argv[1:])
    if parent:
        die_with(parent)
    with Connection(descriptor) as connection:
        worker: SamplingWorker | None = None
        while True:
            try:
                message = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionError):
                break
            try:
                if worker is None:
                    source, checkpoint, options, settings = message
                    acting = find_acting(source, checkpoint, settings["explore"], options)
                    worker, value = SamplingWorker(acting, **settings), None
                else:
                    method, arguments = message
                    value = getattr(worker, method)(*arguments)
            except Exception as error:
                connection.send_bytes(pickle.dumps((True, _as_sent(error))))
            else:
                connection.send_bytes(pickle.dumps((False, value)))
        if worker is not None:
            worker.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Simulators' threads can hold up an orderly end for ever.


def _as_sent(error: Exception) -> Exception:
    """Returns an error as the owner raises it: agentkit's as it is, another with its traceback as text."""
    try:
        if isinstance(error, AgentkitError) and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # Whatever its class raises.
        pass
    found = SamplerProcessError(f"The sampler's process raised {type(error).__name__}: {error}")
    found.add_note("In the process:\n" + "".join(traceback.format_exception(error)))
    return found
