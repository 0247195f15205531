"""The process of a worker: steps its part of the environments of `envs.workers.WorkerBatchedEnvironment`.

A request is a byte and what belongs to it; an answer likewise. Time steps and actions are in shared memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import dm_env

from agentkit.child import die_with
from agentkit.envs.batched import common_spec
from agentkit.envs.columns import info_specs
from agentkit.envs.shared_columns import SharedColumns
from agentkit.errors import AgentkitError
from agentkit.specs import EnvironmentSpec, make_environment_spec

STEP, RESET, CALL, CLOSE = b"s", b"r", b"c", b"q"
DONE, VALUE, ERROR = b"d", b"v", b"e"
_MAX_MESSAGE = 500


class Share(NamedTuple):
    """Says what a worker has.

    Attributes:
        members: pickled `envs.members.Members`.
        groups: numbers of the environments that are stepped together, for each group.
        num_envs: N, of all workers together.
    """

    members: bytes
    groups: tuple[range, ...]
    num_envs: int


class Ready(NamedTuple):
    """Says of a worker's environments, when they have been made, what is the same for all.

    Attributes:
        spec: of one.
        resumable: whether each stands in mid-episode again after `restore`.
        has_raw_return: whether wrappers change the rewards, so that there are returns without the change.
    """

    spec: EnvironmentSpec
    resumable: bool
    has_raw_return: bool


class Failure(NamedTuple):
    """Says what a worker's environment has raised.

    Attributes:
        number: the environment's; None where that is not known.
        call: the method.
        summary: the last line of the traceback, with file and line.
        text: the whole traceback.
        error: the error itself, if it is agentkit's own, which says what to do.
    """

    number: int | None
    call: str
    summary: str
    text: str
    error: AgentkitError | None


class Worker:
    """Answers the requests of the process that has started this one."""

    def __init__(self, connection: Connection, descriptor: int):
        """Makes the environments that the first message asks for, and says what they are."""
        self._connection = connection
        share: Share = pickle.loads(connection.recv_bytes())
        self._groups: list[Any] = []
        self._call = "__init__"
        try:
            members = pickle.loads(share.members)
            self._groups = [members.make(numbers) for numbers in share.groups]
            pairs = zip(share.groups, self._groups, strict=True)
            spec = common_spec((numbers.start, make_environment_spec(group)) for numbers, group in pairs)
            self._columns = SharedColumns(descriptor, spec, share.num_envs)
        except BaseException as error:
            self._tell(error)
            raise SystemExit(1) from error
        self._has_info = bool(info_specs(spec.columns))
        self._slices = [slice(numbers.start, numbers.stop) for numbers in share.groups]
        resumable = all(getattr(group, "resumable", False) for group in self._groups)
        self._has_raw_return = getattr(self._groups[0], "raw_return", None) is not None
        self._answer(VALUE, pickle.dumps(Ready(spec, resumable, self._has_raw_return)))

    def serve(self) -> None:
        """Answers until it is told to close, or nobody is there to ask."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv_bytes()
                request = message[:1]
                if request == CLOSE:
                    return
                try:
                    if request == CALL:
                        self._call, arguments = pickle.loads(message[1:])
                        self._answer(VALUE, pickle.dumps(getattr(self, f"_{self._call}")(*arguments)))
                    else:
                        self._advance(request, message[1:])
                except BaseException as error:
                    self._tell(error)

    def _advance(self, request: bytes, groups: bytes) -> None:
        """Steps or resets groups, one after the other, and tells of each when it is done."""
        self._call = "reset" if request == RESET else "step"
        for i in groups:
            group, rows = self._groups[i], self._slices[i]
            timestep = group.reset() if request == RESET else group.step(self._columns.read_actions(rows))
            self._write(group, rows, timestep)
            if self._has_info:
                self._columns.write_info(rows, group.info_columns)
            self._answer(DONE, bytes((i,)))

    def _save(self) -> dict[str, Any]:
        return {number: state for group in self._groups for number, state in group.save().items()}

    def _restore(self, states: dict[str, Any]) -> bool:
        """Restores the worker's own environments; returns whether there are time steps to go on from."""
        is_in_episode = True
        for group, rows in zip(self._groups, self._slices, strict=True):
            timestep = group.restore({str(i): states[str(i)] for i in range(rows.start, rows.stop)})
            if timestep is None:
                is_in_episode = False
            else:
                self._write(group, rows, timestep)
        return is_in_episode

    def _write(self, group: Any, rows: slice, timestep: dm_env.TimeStep) -> None:
        self._columns.write_timestep(rows, timestep)
        if self._has_raw_return:
            self._columns.write_raw_return(rows, group.raw_return)

    def _reseed(self, seed: int) -> None:
        for group in self._groups:
            group.reseed(seed)

    def _get(self, number: int, name: str) -> tuple[bool, Any]:
        """Returns whether an environment has an attribute that is no method, and its value."""
        group, rows = next(
            (group, rows) for group, rows in zip(self._groups, self._slices, strict=True) if number < rows.stop
        )
        value = getattr(group.environments[number - rows.start], name, _bound_to_nothing)
        return (False, None) if callable(value) else (True, value)

    def _render(self) -> Any:
        return self._groups[0].render()

    def _answer(self, kind: bytes, content: bytes = b"") -> None:
        self._connection.send_bytes(kind + content)

    def _tell(self, error: BaseException) -> None:
        """Sends what has been raised."""
        failed = [group.failed for group in self._groups if getattr(group, "failed", None) is not None]
        text = "".join(traceback.format_exception(error))
        last = traceback.format_exception_only(error)[-1].strip()
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        own = error if isinstance(error, AgentkitError) and _travels(error) else None
        failure = Failure(failed[0] if failed else None, self._call, f"{last[:_MAX_MESSAGE]}{place}", text, own)
        with contextlib.suppress(OSError):
            self._answer(ERROR, pickle.dumps(failure))

    def close(self) -> None:
        """Closes the environments."""
        for group in self._groups:
            group.close()


def _bound_to_nothing() -> None:
    """Stands for an attribute that is not there."""


def _travels(error: BaseException) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # Whatever its class raises.
        return False


def main() -> None:
    """Runs a worker; its arguments are whom to die with (0 for nobody), and descriptors of socket and shared memory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A terminal or a scheduler signals all processes; the parent decides, and may still want to save. No SIG_IGN,
        # which a simulator's own processes would inherit.
        signal.signal(number, _leave_it_to_the_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    parent, socket, descriptor = map(int, sys.argv[1:])
    if parent:
        die_with(parent)
    with Connection(socket) as connection:
        worker = Worker(connection, descriptor)
        worker.serve()
        worker.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Simulators' threads can hold up an orderly end for ever.


def _leave_it_to_the_parent(number: int, frame: Any) -> None:
    """Does nothing."""
