"""Holds what all nodes of a launched experiment use: how long they wait, the run folder, and their log."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from agentkit import checkpoint
from agentkit.distributed.context import LOST_SECONDS, NodeContext
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.distributed.worker import report_error
from agentkit.errors import ConfigError
from agentkit.experiment.checks.step_watch import StepTimeoutError, StepWatch, environment_name
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.runs.learner_folders import learner_folder, learner_folders
from agentkit.experiment.runs.lock import RunFolder, folder_gone
from agentkit.scratch import named_scratch
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.wire import listen_address, private_address

OUTAGE_SECONDS = 300.0
"""How long actors and the learner wait for a replay server that is gone."""

_ALL_STEPS = sys.maxsize

_START_STEP = "start_step"
STATUS_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 10.0


def watch_steps(context: NodeContext, experiment: RunConfig) -> StepWatch:
    """Makes what ends this node where its environment hangs; the program is told before."""

    def tell(message: str) -> None:
        report_error(context.store, context.name, context.incarnation, StepTimeoutError(message))

    return StepWatch(environment_name(experiment), experiment.step_timeout, on_stuck=tell)


def contents_seconds(num_items: int) -> float:
    """Returns how long writing or freeing a table of so many items may take; a busy machine took a tenth of it."""
    return 120.0 + num_items * 5e-4


def num_items(context: NodeContext) -> int:
    """Returns how many items the run's tables hold, as their nodes have told the run store; 0 where it is away."""
    with contextlib.suppress(RunStoreError):
        values = context.store.status()["values"]
        tables = [value for key, value in values.items() if key == "tables" or key.startswith("tables/")]
        return sum(int(table["size"]) for each in tables for table in each.values())
    return 0


def find_spec(experiment: ExperimentConfig, beside: bool = False) -> EnvironmentSpec:
    """Returns the spec of the experiment's environment, from a look at one.

    Args:
        experiment: whose.
        beside: see `StepWatch`; for a process that nobody supervises.

    Raises:
        ConfigError: it is a batch of another number of environments than the experiment says.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(StepWatch(environment_name(experiment), experiment.step_timeout, beside=beside))
        environment = watch.make(lambda: experiment.make_environment(experiment.seed, experiment.num_envs))
        stack.enter_context(contextlib.closing(environment))
        if (found := experiment.for_batch(environment).num_envs) != experiment.num_envs:
            raise ConfigError(
                f"num_envs: {environment_name(experiment)} is a batch of {found} environments, which the other nodes "
                f"of a launched program have to know. Give --num-envs {found} (num_envs={found})."
            )
        return make_environment_spec(environment)


def listen_at(
    context: NodeContext, stack: contextlib.ExitStack, listen: str, port: int | None = None,
    folder: pathlib.Path | None = None,
) -> str:  # fmt: skip
    """Returns where a node's server on the wire listens, the same after a restart on one machine.

    Args:
        context: the node's.
        stack: ends with the server.
        listen: a network device; "lo" is this machine alone, where the server has a socket in a private folder.
        port: of a network device; None for a free one.
        folder: a private one; None, or one whose path is too long for a socket, for a temporary one.

    Raises:
        ConfigError: the path of a temporary one is too long, too.
    """
    if listen != "lo":
        return listen_address(listen, port)
    found = None if folder is None else private_address(folder, context.role)
    if found is None:
        name = hashlib.sha256(f"{context.name} of {context.store.run_id}".encode()).hexdigest()[:16]
        temporary = stack.enter_context(named_scratch(context.role, name))
        found = private_address(temporary, context.role)
        if found is None:
            raise ConfigError(f"The path of {temporary} is too long for a socket. Set TMPDIR to a shorter folder.")
    return found


def open_run_folder(context: NodeContext, learner_id: str | None = None) -> RunFolder:
    """Returns the run folder of a learner, or of its replay, before anything is made in it.

    One of several learners gets its part of the folder, and the context has that from here on.

    Raises:
        RunFolderGoneError: a node that is started again finds no folder, and would begin anew in one of the old name.
    """
    folder = context.run_directory
    if folder is not None:
        if not folder.is_dir() and (context.incarnation > 0 or was_here(context)):
            raise folder_gone(folder)
        if learner_id is not None:
            context.run_directory = folder = learner_folder(folder, learner_id)
        folder.mkdir(parents=True, exist_ok=True)  # There is none yet where the disk is not shared.
    return RunFolder(folder)


def newest_checkpoint(directory: pathlib.Path | None) -> checkpoint.Checkpoint | None:
    """Returns the newest whole checkpoint of the run in a folder; None if there is none, or no folder."""
    return None if directory is None else checkpoint.read_latest(directory / "checkpoints")


def newest_step(directory: pathlib.Path | None) -> int:
    """Returns the step of the newest checkpoint, or of several learners' newest, without reading it; 0 without any."""
    if directory is None:
        return 0
    folders = (directory, *learner_folders(directory))
    return max((step for each in folders for step in checkpoint.steps(each / "checkpoints")), default=0)


def start_values(step: int) -> dict[str, int]:
    """Returns what tells the nodes, through the run store, from which step their program goes on; 0 of a new run."""
    return {_START_STEP: step}


def resume_step(context: NodeContext) -> int:
    """Returns the step up to which a log is kept: all of it, unless the whole run went back to a checkpoint.

    The run went back when its run store was started, and with it each node's first process. Incarnations do not tell
    that: of a node that joins by itself, and of one that `scale` adds again, each is number 0. Nor do the checkpoints
    tell how far: the newest may be damaged, or have been written since.
    """
    if was_here(context):
        return _ALL_STEPS
    start = context.store.status()["values"].get(_START_STEP)  # A program of one's own, of no `launch`, has none.
    return newest_step(context.run_directory) if start is None else int(start)


def was_here(context: NodeContext) -> bool:
    """Returns whether a node has been ready, or has left, since the run store was started."""
    values = context.store.status()["values"]
    return any(f"{kind}/{context.name}" in values for kind in ("endpoint", "left"))


def is_here(node: Mapping[str, Any]) -> bool:
    """Returns whether a node of the run store's status has neither ended nor been silent for `LOST_SECONDS`."""
    return node["state"] != "done" and (node["beat_age_seconds"] or 0.0) < LOST_SECONDS


def count_dropped(context: NodeContext) -> Callable[[int], None]:
    """Counts, in the status, the rows of a node's log that a full disk has refused."""
    return lambda number: context.gauge(log_rows_dropped=number)


def log(context: NodeContext, text: str) -> None:
    """Writes a line to the node's log."""
    with contextlib.suppress(OSError):  # A full disk refuses the log too.
        print(f"{context.name} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
