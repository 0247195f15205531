"""Runs one node to its end and says how it ended; the child process of the *processes* engine.

Exit codes: `EXIT_DONE`, `EXIT_ERROR` (starting it again may help), `EXIT_FATAL` (it cannot: a wrong setting,
a failing import), `EXIT_SIGNALLED` (it saved and stopped because a signal told it to). The error itself goes
to the run store, with its traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from agentkit.child import die_with, set_by_signals
from agentkit.distributed.context import NodeContext, NodeId, Patience, exit_after
from agentkit.distributed.program import Node, resolve
from agentkit.distributed.run_store_client import RunStoreClient, RunStoreError
from agentkit.errors import AgentkitError, ConfigError, NonFiniteError, SpecError, UnknownNameError

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_FATAL = 2
EXIT_SIGNALLED = 3

_CANNOT_BE_MENDED = (ConfigError, SpecError, NonFiniteError, UnknownNameError, ImportError, SyntaxError)
DEPENDENCY_SECONDS = 600.0
"""How long a node waits for one that it depends on: replay may have much to load."""

_MAX_TRACEBACK = 20_000


@dataclasses.dataclass(frozen=True)
class RunAddress:
    """Says how a node finds its program.

    Attributes:
        store_address: "host:port".
        run_id: the run's secret.
        run_directory: where the run keeps its files; None for nowhere.
        incarnation: how often this node was restarted.
        stop_seconds: how long it may take to stop.
        preload: modules to import while it waits for those it depends on.
        life: what a node that joins by itself has claimed its name with.
    """

    store_address: str
    run_id: str
    run_directory: str | None = None
    incarnation: int = 0
    stop_seconds: float = 20.0
    preload: tuple[str, ...] = ()
    life: str | None = None


def run_node(
    node: Node, run_address: RunAddress, stop: threading.Event | None = None, patience: Patience | None = None
) -> int:
    """Calls a node's function with its context; all engines come through here.

    Args:
        node: what to run.
        run_address: how it finds its program.
        stop: set by the engine to stop the node; the run store can do so too.
        patience: what the node's announced calls extend.

    Returns:
        `EXIT_DONE`, `EXIT_ERROR` or `EXIT_FATAL`.
    """
    directory = None if run_address.run_directory is None else pathlib.Path(run_address.run_directory)
    stop = stop or threading.Event()
    try:
        store = RunStoreClient(
            run_address.store_address,
            run_address.run_id,
            node=node.name,
            incarnation=run_address.incarnation,
            life=run_address.life,
            timeout=15.0,
        )
    except RunStoreError as error:
        print(f"{node.name}: {error}", file=sys.stderr, flush=True)
        return EXIT_ERROR
    with contextlib.closing(store):
        node_id = NodeId(node.name, node.role, node.index, run_address.incarnation, directory)
        context = NodeContext(node_id, store, stop=stop, patience=patience)
        try:
            for module in run_address.preload:
                importlib.import_module(module)
            args, kwargs = resolve((list(node.args), dict(node.kwargs)), lambda name: _endpoint(store, name, stop))
            node.target(context, *args, **kwargs)
            return EXIT_ERROR if context.lost else EXIT_DONE
        except _StoppedError:
            return EXIT_DONE
        except BaseException as error:  # Also SystemExit and KeyboardInterrupt: nothing ends a node unsaid.
            fatal = isinstance(error, _CANNOT_BE_MENDED) and not isinstance(error, RunStoreError)
            report_error(store, node.name, run_address.incarnation, error, fatal)
            return EXIT_FATAL if fatal else EXIT_ERROR
        finally:
            context.close()


class _StoppedError(Exception):
    """A node is told to stop that waits for another: it has nothing to save."""


def _endpoint(store: RunStoreClient, name: str, stop: threading.Event) -> Any:
    found = store.get(f"endpoint/{name}", timeout=DEPENDENCY_SECONDS, stop=stop)
    if found is None:
        raise _StoppedError
    return found["value"]


def report_error(store: RunStoreClient, name: str, incarnation: int, error: BaseException, fatal: bool = False) -> None:
    """Tells log and run store why a node ends; `fatal` if no restart mends it."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    record = {
        "node": name,
        "incarnation": incarnation,
        "type": type(error).__name__,
        "message": str(error)[:_MAX_TRACEBACK],
        "traceback": text[-_MAX_TRACEBACK:],
        "says_all": isinstance(error, AgentkitError),
        "fatal": fatal,
        "time": time.time(),
    }
    with contextlib.suppress(RunStoreError):
        store.put(f"error/{name}", record)


def main() -> int:
    """Runs the node that its parent, and nobody else, can write to its standard input."""
    die_with(int(sys.argv[1]))
    message, run_address = pickle.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # Frees what was read.
    return run_pickled(message, run_address)


def run_pickled(message: bytes, run_address: RunAddress) -> int:
    """Runs a node that came from another process, in the main thread of one of its own.

    SIGTERM and SIGINT stop it in order; it ends this process if it takes longer than it may.

    Args:
        message: the node, pickled by cloudpickle.
        run_address: how it finds its program.

    Returns:
        One of the exit codes.
    """
    import cloudpickle

    faulthandler.enable()
    stop = threading.Event()
    signals: list[int] = []

    with set_by_signals(stop) as set_stop:

        def on_signal(number: int, _frame: Any) -> None:
            signals.append(number)
            set_stop()  # It may be sent twice; who has no patience sends SIGKILL.

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        try:
            node: Node = cloudpickle.loads(message)
        except Exception:  # Its module cannot be imported here: no restart will help.
            traceback.print_exc()
            return EXIT_FATAL
        patience = Patience()
        exit_after(run_address.stop_seconds, stop, EXIT_ERROR, patience)
        code = run_node(node, run_address, stop, patience)
        return EXIT_SIGNALLED if code == EXIT_DONE and signals else code


def exit_with(code: int) -> NoReturn:
    """Ends this process at once: Reverb's and TensorFlow's threads can hold up an orderly end for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
