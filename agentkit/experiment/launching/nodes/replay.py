"""Runs the replay server's process: it serves the tables on a port that stays the same."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentkit import checkpoint, ports
from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreClient, RunStoreError
from agentkit.errors import CheckpointError, ConfigError, ReplayClosedError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.sharing.common import (
    STATUS_SECONDS,
    contents_seconds,
    find_spec,
    is_here,
    listen_at,
    log,
    newest_step,
    num_items,
    open_run_folder,
    was_here,
)
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.runs.learner_folders import contents_name, handover_folder, newest_contents
from agentkit.experiment.runs.lock import RunFolder
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.replay import Replay, Table, reverb
from agentkit.specs import EnvironmentSpec
from agentkit.wire import keys_at, reachable_address

_THIS_PROCESS = secrets.token_hex(8)


def replay_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None = None, *,
    listen: str = "lo", port: int | None = None, learner_id: str | None = None,
) -> None:  # fmt: skip
    """Serves the agent's tables, and says when all steps are taken.

    Args:
        context: the node's.
        experiment: what is run; see `backend_of`.
        spec: the environment's; None looks at one.
        listen: the network device to listen on; "lo" is this machine alone.
        port: None finds a free one, and keeps it when the node is started again.
        learner_id: of several learners, the one that learns from it; see `learner_node`.
    """
    run_folder = open_run_folder(context, learner_id)
    spec = spec or find_spec(experiment)
    folder, contents = context.run_directory, contents_name(context.name)
    found = None if folder is None else newest_contents(folder, contents, begins=not was_here(context))
    if folder is not None and (found is None or found.path.parent != handover_folder(folder, contents)):
        shutil.rmtree(handover_folder(folder, contents), ignore_errors=True)  # It is older, or of an earlier program.
    scratch = None if folder is None else folder / f".{context.name}"
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # A server that was killed left its files there.
        scratch.mkdir(mode=0o700)
    tables, port = experiment.agent.make_tables(spec), port or context.store.status()["values"].get(_port_key(context))
    with contextlib.ExitStack() as stack:
        if backend_of(experiment) == "reverb":
            replay, announce, serve = _open_reverb(context, tables, scratch, stack, listen=listen, port=port)
        else:
            where = listen_at(context, stack, listen, port, scratch)
            replay, announce, serve = _open_served(context, tables, where, experiment, stack, listen=listen)
        if found is not None:
            _restore(context, replay, found.path / contents)
        elif newest_step(folder):
            log(context, f"No checkpoint in {folder} holds replay contents: replay starts empty.")
        # Tables of another learner, of a second server or of another shard are beside those of the first: see
        # `all_tables`.
        status = "tables" if context.index == 0 else f"tables/{context.name}"
        if learner_id is not None:
            status = f"tables/{learner_id}/{context.name}"
        context.store.put(status, {name: _table_status(replay, name) for name in replay.tables})
        goal = experiment.num_steps
        context.store.put("num_steps", goal)
        endpoint = {"node": context.name, "host": socket.gethostname(), "address": announce()}
        context.ready({**endpoint, "pid": os.getpid(), "process": _THIS_PROCESS})
        while not context.should_stop:
            serve(STATUS_SECONDS)
            with contextlib.suppress(RunStoreError):  # A store that stays silent ends this node in order.
                context.store.put(status, {name: _table_status(replay, name) for name in replay.tables})
                if context.totals().get("steps", 0) >= goal:
                    context.request_stop(f"reached {goal:,} steps")
        with context.busy("saving or freeing replay", contents_seconds(num_items(context))):
            if folder is not None:
                _leave(context, run_folder, folder, replay)
            stack.close()
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def backend_of(experiment: ExperimentConfig | MultiAgentConfig) -> str:
    """Returns what a replay node runs: "reverb" where the experiment names it, else "served".

    Raises:
        MissingExtraError: the experiment names Reverb, which is not installed.
    """
    if experiment.replay != "reverb":
        return "served"
    reverb.check_installed()
    return "reverb"


def _port_key(context: NodeContext) -> str:
    return f"port/{context.name}"


Opened = tuple[Replay, Callable[[], str], Callable[[float], object]]
"""The tables; what returns the address for others, once these are restored; and what serves for some seconds."""


def _open_reverb(
    context: NodeContext,
    tables: Sequence[Table],
    scratch: pathlib.Path | None,
    stack: contextlib.ExitStack,
    *,
    listen: str,
    port: int | None,
) -> Opened:
    from agentkit.replay import ReverbReplay  # Loads TensorFlow.

    replay = ReverbReplay(tables, port=port, listen=listen, checkpoint_directory=scratch)
    stack.enter_context(replay)

    def announce() -> str:  # To restore Reverb's tables is to start its server anew, at another port.
        return f"{ports.device_address(listen)}:{_keep_port(context, replay.address)}"

    return replay, announce, context.wait


def _keep_port(context: NodeContext, address: str) -> int:
    """Returns the port of an address, and keeps it for this node's next incarnation."""
    number = int(address.rpartition(":")[2])
    context.store.put(_port_key(context), number)
    return number


def _open_served(
    context: NodeContext,
    tables: Sequence[Table],
    where: str,
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    *,
    listen: str,
) -> Opened:
    from agentkit.replay.served import ReplayServer

    make_replay, keys = experiment.replay if callable(experiment.replay) else None, keys_at(where, context.store.run_id)
    server = stack.enter_context(contextlib.closing(ReplayServer(tables, where, keys, experiment.seed, make_replay)))
    _announce_saves(context, server.replay)

    def announce() -> str:
        if server.address.startswith("tcp://"):
            _keep_port(context, server.address)
        return reachable_address(server.address, listen)

    def serve(seconds: float) -> None:
        context.wait(0.0)
        server.serve(seconds)

    return server.replay, announce, serve


def _announce_saves(context: NodeContext, replay: Replay) -> None:
    """Makes a replay announce each save: a learner asks for it, and this node's main loop stands still meanwhile."""
    save = replay.save

    def announce_and_save(directory: pathlib.Path) -> None:
        size = sum(replay.info(name).size for name in replay.tables)
        with context.busy("saving replay", contents_seconds(size)):
            save(directory)

    replay.save = announce_and_save  # type: ignore[method-assign]


def _restore(context: NodeContext, replay: Replay, directory: pathlib.Path) -> None:
    """Fills the tables; 400,000 prioritised items took a served replay 0.05 s.

    Raises:
        ResumeError: the contents are of other tables, or damaged.
        CheckpointError: the server did not start with them; it may do so at another try.
    """
    num_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    with context.busy(f"restoring {num_bytes / 1e6:.0f} MB of replay", 120.0 + num_bytes / 1e6):
        try:
            replay.restore(directory)
        except CheckpointError as error:
            if isinstance(error.__cause__, RuntimeError):
                raise
            raise ResumeError(str(error)) from error


def _leave(context: NodeContext, run_folder: RunFolder, folder: pathlib.Path, replay: Replay) -> None:
    """Hands over what the tables hold, unless the program stops and the learner has saved it.

    It has not where this node alone is told to stop, nor where a signal ends both, and this one first.

    Raises:
        RunFolderGoneError: the run folder is not there any more.
        CheckpointError: the disk refuses.
    """
    contents = contents_name(context.name)
    if _program_stops(context) and _is_saved(context, folder, contents):
        shutil.rmtree(handover_folder(folder, contents), ignore_errors=True)  # This one has begun with that.
    else:
        run_folder.check()
        _hand_over(folder, contents, context.totals().get("steps", 0), replay)


def _hand_over(folder: pathlib.Path, contents: str, step: int, replay: Replay, num_attempts: int = 3) -> None:
    """Saves what the tables hold; tries again, as a learner that saves at the same time takes the file away."""
    for attempt in range(num_attempts):
        try:
            checkpoint.write(handover_folder(folder, contents), step, {}, {contents: replay.save}, max_to_keep=1)
            return
        except CheckpointError:
            if attempt == num_attempts - 1:
                raise
            time.sleep(0.5)


def _is_saved(context: NodeContext, folder: pathlib.Path, contents: str) -> bool:
    """Returns whether a checkpoint has the contents of all steps, or the newest has some, and no learner is here.

    Then nobody writes one without contents any more, and what is handed over would never be read.
    """
    with_contents = checkpoint.steps(folder / "checkpoints", contents)
    if not with_contents or with_contents[-1] >= context.totals().get("steps", 0):
        return bool(with_contents)
    with contextlib.suppress(RunStoreError):
        nodes = context.store.status()["nodes"].values()
        is_newest = with_contents[-1] == checkpoint.steps(folder / "checkpoints")[-1]
        return is_newest and not any(node["role"] == "learner" and is_here(node) for node in nodes)
    return False


def _program_stops(context: NodeContext) -> bool:
    with contextlib.suppress(RunStoreError):
        return context.store.status()["stop"] is not None
    return False


def _table_status(replay: Replay, name: str) -> dict[str, Any]:
    info, limiter = replay.info(name), replay.tables[name].rate_limiter
    counts = {"size": info.size, "inserted": info.num_inserted, "sampled": info.num_sampled}
    waiting = "nobody"
    if not limiter.can_insert(1, **counts):
        waiting = "writers"
    elif not limiter.can_sample(1, **counts):
        waiting = "samplers"
    target = limiter.samples_per_insert
    return {
        **{k: int(v) for k, v in info._asdict().items() if k != "name"},
        "samples_per_insert": float(info.samples_per_insert),
        "samples_per_insert_target": float(target) if np.isfinite(target) else None,
        "waiting": waiting,
    }


def connect_to_replay(
    tables: Any,
    endpoint: Mapping[str, Any],
    *,
    timeout: float,
    wait: float,
    draw_ahead: bool = False,
    store: RunStoreClient | None = None,
) -> Replay:
    """Connects to a replay node's server.

    Args:
        tables: the agent's.
        endpoint: the replay node's.
        timeout: seconds, of later waits.
        wait: seconds that a server may take to answer now.
        draw_ahead: see `ReverbReplay`, `ServedReplay`.
        store: says where a served replay is when it has come back; needed for one on another machine.

    Raises:
        ReplayClosedError: it does not answer, or it is Reverb's and its process has this one's PID and is another one.
    """
    address = str(endpoint["address"])
    if is_served(endpoint):
        from agentkit.replay.served import ServedReplay

        keys = None if store is None else keys_at(address, store.run_id)
        find = None if store is None else functools.partial(_find_address, store, f"endpoint/{endpoint['node']}")
        return ServedReplay(
            tables, address, keys, default_timeout=timeout, connect_timeout=wait, draw_ahead=draw_ahead,
            find_address=find,
        )  # fmt: skip
    from agentkit.replay import ReverbReplay

    if endpoint["pid"] == os.getpid() and endpoint["process"] != _THIS_PROCESS:
        # Reverb takes equal PIDs for one process and follows the other's pointer.
        raise ReplayClosedError(
            f"This process and the replay server both have PID {os.getpid()}, in different PID namespaces: Reverb "
            "would crash. A restart gives another PID; in Kubernetes set shareProcessNamespace: true."
        )
    return ReverbReplay(tables, address=address, default_timeout=timeout, connect_timeout=wait, draw_ahead=draw_ahead)


def check_reachable(endpoint: Mapping[str, Any]) -> None:
    """Checks that a replay node's server can be reached from here, before the first connection to it.

    Later it would say nothing: a node that is started again removes the server's file for a while, and containers of
    one machine have names of their own.

    Raises:
        ConfigError: it is on another machine, and listens on that alone.
    """
    here, address = socket.gethostname(), str(endpoint["address"])
    path = address.removeprefix("ipc://")
    if path != address and endpoint.get("host", here) != here and not os.path.exists(path):
        raise ConfigError(
            f"Replay is on {endpoint['host']}, this node is on {here}, and replay listens on its own machine alone. "
            "Name the network device that reaches both: --listen (listen=)."
        )


def _find_address(store: RunStoreClient, key: str) -> str | None:
    """Returns where the server is now: it may come back on another machine, or at another port.

    None while the store is away, too, or was started again and has not heard of the server yet.
    """
    found = store.peek(key)
    return None if found is None else str(found["value"]["address"])


def is_served(endpoint: Mapping[str, Any]) -> bool:
    """Returns whether a replay node's endpoint is that of a served replay, and not Reverb's."""
    return "://" in str(endpoint["address"])


def keep_alive(endpoint: Mapping[str, Any]) -> None:
    """Lets TCP notice that the host of a Reverb server vanished; a served replay's connections notice it themselves."""
    if not is_served(endpoint):
        ports.keep_connections_alive(int(str(endpoint["address"]).rpartition(":")[2]))
