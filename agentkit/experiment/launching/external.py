"""Runs the nodes of an experiment where another scheduler (SLURM, Kubernetes, a shell loop) starts the processes.

`host_run` is the replay node with the run's store, and `join_run` is any of the others: they
find all they need at the run store's address, with the run's id.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import queue
import random
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentkit import ports
from agentkit.distributed import Handle, NodeContext, NodeTakenError, RunStore, RunStoreClient
from agentkit.distributed.address_file import write_address_file, write_secret
from agentkit.distributed.context import NodeId
from agentkit.distributed.program import Node
from agentkit.distributed.worker import RunAddress, run_node
from agentkit.errors import ConfigError, unknown_name
from agentkit.experiment.config import callback_record, identity
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.evaluator import evaluator_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import backend_of, replay_node
from agentkit.experiment.launching.program import program_name
from agentkit.experiment.launching.run import prepare_launch, run_store_values
from agentkit.experiment.launching.sharing.callbacks import stopped_by
from agentkit.experiment.launching.sharing.common import STATUS_SECONDS, is_here
from agentkit.experiment.launching.sharing.transports import forget_parameters
from agentkit.experiment.runs.config_json import experiment_from_record
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_for_processes, check_installed
from agentkit.experiment.runs.logs import ProgramLog
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.files import refusing_unwritable
from agentkit.wire import check_secret

ROLES = ("replay", "learner", "actor", "evaluator")

NUM_INDICES = 10**9
"""Of actors that name none; where two draw the same one, the second draws again."""

CLAIM_SECONDS = 0.2

_INSTEAD = {
    "learner": "Stop it before you start another: a run has one learner.",
    "actor": "Stop it, or choose another --index, or none for a random one.",
    "evaluator": "Stop it, or choose another --index.",
}

STOP_SECONDS = 120.0
"""How long external nodes may take to save and leave, beside the calls that they announce."""


def host_run(
    experiment: ExperimentConfig,
    *,
    store_port: int,
    port: int | None = None,
    listen: str = "lo",
    run_id: str | None = None,
    on_start: Callable[[str, str], None] | None = None,
) -> str:
    """Runs the run store and the replay node of a run whose other nodes another scheduler starts.

    Started again after a kill (with the same ports and run id), it goes on from the newest checkpoint,
    and the others find it by themselves.

    Args:
        experiment: of parts that can be named, so that the others can make it too.
        store_port: of the run store: the one port that others are told.
        port: of replay; None finds a free one.
        listen: the network device for both.
        run_id: the secret; None makes one, or takes that of the run folder.
        on_start: called with the run store's address and the run id.

    Returns:
        Why it ended.

    Raises:
        ProgramError: a callback failed; the message has its traceback.
    """
    replay = experiment.replay if callable(experiment.replay) else backend_of(experiment)
    experiment = dataclasses.replace(experiment, replay=replay, progress=False)
    record, directory = _check_external(experiment)
    with run_lock(directory):
        return _host(experiment, record, directory, run_id, on_start, store_port=store_port, port=port, listen=listen)


def _host(
    experiment: ExperimentConfig, record: dict[str, Any], directory: pathlib.Path, run_id: str | None,
    on_start: Callable[[str, str], None] | None, *, store_port: int, port: int | None, listen: str,
) -> str:  # fmt: skip
    known = directory / "run_id"
    run_id = check_secret(run_id or _read_secret(known, listen) or secrets.token_hex(16))
    found = prepare_launch(experiment, (directory / "config.json").exists(), {})
    write_secret(known, run_id)
    host = "127.0.0.1" if listen == "lo" else "0.0.0.0"
    with RunStore(run_id, host=host, port=store_port, program=program_name(record)) as store:
        if listen != "lo":  # There it listens on loopback alone by itself.
            ports.restrict_to_device(store_port, listen, "The run store")
        if found is not None:
            store.restore_counts(found.state["totals"], found.state.get("counted"))
        for key, value in run_store_values(None if found is None else found.state).items():
            store.put(key, value)
        store.put("experiment", {**record, "run_directory": str(directory)})
        store.put("by_hand", True)  # Nobody here could start an actor: see `agentkit scale`.
        address = f"127.0.0.1:{store.address.rpartition(':')[2]}"
        write_address_file(directory, address, run_id)
        asked, stop = threading.Event(), threading.Event()
        store.node("replay-0", supervised=True, state="ready")
        with (
            contextlib.closing(RunStoreClient(address, run_id, node="replay-0")) as client,
            StopOnSignal(asked),
            _logged(store, ProgramLog(experiment, ROLES, 0 if found is None else found.step)),
        ):
            context = NodeContext(NodeId("replay-0", "replay", 0, 0, directory), client, stop=stop)
            threading.Thread(target=_process_commands, args=(store, asked, stop), name="commands", daemon=True).start()
            if on_start is not None:
                on_start(f"{ports.device_address(listen)}:{store_port}".replace("localhost", "127.0.0.1"), run_id)
            try:
                replay_node(context, experiment, listen=listen, port=port)
            finally:
                context.close()
        reason, status = store.stop_reason or "stopped by a signal", store.status()
    forget_parameters(run_id)
    (directory / "board.json").unlink(missing_ok=True)
    stopped_by(status)  # Raises what a callback has raised.
    return reason


def _read_secret(path: pathlib.Path, listen: str) -> str | None:
    """Returns the secret in a run folder, so that others find a host that is started again; None if there is none."""
    if not path.is_file():
        return None
    if listen != "lo" and path.stat().st_uid != _owner_of_new(path):
        raise ConfigError(
            f"{path} is another user's, who knows the key of all that would listen on {listen} here. Remove it, and a "
            "new one is made; or give a run id of your own (AGENTKIT_RUN_ID)."
        )
    found = path.read_text().strip()
    try:
        return check_secret(found) if found else None
    except ConfigError as error:
        raise ConfigError(f"Remove {path}, and a new one is made: the one there is too weak. {error}") from None


def _owner_of_new(path: pathlib.Path) -> int:
    """Returns whose a file is that is written beside another: NFS and CIFS may give it to somebody else than us."""
    with refusing_unwritable(path), tempfile.NamedTemporaryFile(dir=path.parent) as written:
        return os.stat(written.name).st_uid


def _check_external(experiment: ExperimentConfig) -> tuple[dict[str, Any], pathlib.Path]:
    """Returns what external nodes make the experiment of again, and the run folder."""
    record = experiment.describe()
    if experiment.run_directory is None:
        raise ConfigError("External nodes need a run_directory: it is where they go on from after a restart.")
    directory = pathlib.Path(experiment.run_directory).absolute()
    check_for_processes(experiment)
    check_installed(experiment)
    packages = identity.packages_of(record)
    identity.check_rebuildable(record, directory, packages)
    callback_record.rebuild(record, directory, packages)
    return record, directory


@contextlib.contextmanager
def _logged(store: RunStore, log: ProgramLog) -> Iterator[None]:
    """Gives the log the run store's status twice a second, and once at the end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(STATUS_SECONDS):
            log.write(store.status())

    thread = threading.Thread(target=watch, name="program-log", daemon=True)
    with log:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=10.0)
            log.write(store.status())


def _process_commands(store: RunStore, asked: threading.Event, stop: threading.Event) -> None:
    """Waits until the run is to stop; replay itself stops when the others, which may save, have left."""
    while store.stop_reason is None:
        if asked.is_set():
            store.stop("stopped by a signal")
        with contextlib.suppress(queue.Empty):
            name, arguments = store.commands.get(timeout=0.2)
            if name == "stop":
                store.stop(str(arguments.get("reason") or "asked to stop"))
    start, announced = time.monotonic(), 0.0
    while time.monotonic() < start + STOP_SECONDS + announced:
        status = store.status()
        calls = [call for key, call in status["values"].items() if key.startswith("busy/")]
        announced = max([announced, *(float(call["seconds"]) for call in calls)])  # Of a large replay, say.
        others = [node for name, node in status["nodes"].items() if name != "replay-0"]
        if not any(map(is_here, others)):
            break
        time.sleep(0.1)
    stop.set()


def join_run(
    role: str, *, connect: str, run_id: str, index: int | None = None, listen: str = "lo", timeout: float = 120.0,
    imports: Sequence[str] = (),
) -> int:  # fmt: skip
    """Runs a learner, actor or evaluator of a run whose store is at an address, until it is told to stop.

    Args:
        role: "learner", "actor" or "evaluator".
        connect: "host:port" of the run store that the replay node printed.
        run_id: the run's secret.
        index: tells nodes of a role apart; None draws one for an actor, and is 0 for the others.
        listen: for a learner, the network device of its own server, see `transports.make_publisher`.
        timeout: seconds to wait for the run store.
        imports: packages outside of agentkit that the run's parts are from, see `read_config`.

    Returns:
        The exit code: 0 done; 1 an error that starting it again may mend; 2 one that it cannot.
    """
    if role not in ROLES[1:]:
        raise unknown_name("role", role, ROLES[1:])
    with contextlib.closing(RunStoreClient(connect, run_id, timeout=timeout)) as client:
        record = dict(client.get("experiment", timeout=timeout))
    directory = pathlib.Path(record.pop("run_directory"))
    experiment = experiment_from_record(record, directory, imports=imports)
    check_installed(experiment)
    experiment = dataclasses.replace(experiment, callbacks=callback_record.rebuild(record, directory, imports))
    replay, learner = Handle("replay-0"), Handle("learner-0")
    if role == "learner":
        target: Any = learner_node
        arguments: tuple[Any, ...] = (experiment, None, replay)
        settings: dict[str, Any] = {"listen": listen}
    elif role == "actor":
        target, arguments, settings = actor_node, (experiment, None, replay, learner), {}
    else:
        target, arguments, settings = evaluator_node, (experiment, None, learner), {}
    with contextlib.closing(RunStoreClient(connect, run_id, timeout=timeout)) as client:
        number, life = _claim_index(client, role, index)
    node = Node(f"{role}-{number}", role, number, target, arguments, settings)
    stop = threading.Event()
    with StopOnSignal(stop):
        return run_node(node, RunAddress(connect, run_id, str(directory), life=life), stop)


def _claim_index(client: RunStoreClient, role: str, index: int | None) -> tuple[int, str]:
    """Returns the index that this process has now, and with what; two of one index would be counted twice.

    None draws one for an actor, and is 0 for the others.

    Whoever had it may have been killed a moment ago: it is taken over as soon as the run store has missed it long
    enough. Where it is heard of again meanwhile, it lives.

    Raises:
        NodeTakenError: it lives.
    """
    life, start = secrets.token_hex(16), time.monotonic()
    if index is None and role != "actor":
        index = 0
    while True:
        number = random.SystemRandom().randrange(NUM_INDICES) if index is None else index
        other = client.claim(f"{role}-{number}", life)
        if other is None:
            return number, life
        if index is not None and other["beat_age_seconds"] < time.monotonic() - start - CLAIM_SECONDS:
            raise NodeTakenError(
                f"{role}-{index} runs already: process {other['pid']} on {other['host']}. {_INSTEAD[role]}"
            )
        time.sleep(CLAIM_SECONDS)
