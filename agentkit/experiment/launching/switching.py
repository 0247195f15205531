"""Goes on in one process with a launched run, and launched with a run in one process.

Checkpoints of both have the learner's state and the contents of agentkit's own replay, and have them alike. Who acts is
another one: the actors' episodes end with the switch, their schedules go on, and their seeds are new ones.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

import numpy as np

from agentkit import checkpoint
from agentkit.callbacks.base import has
from agentkit.distributed import connect_to_run
from agentkit.errors import AgentkitError, CheckpointError, ConfigError
from agentkit.experiment.launching.nodes.replay import newest_contents
from agentkit.experiment.launching.sharing.exploring import Start
from agentkit.experiment.runs.config_json import read_record
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.logs import drop_later_rows
from agentkit.experiment.runs.resume_checks import command_of
from agentkit.experiment.training.hooks import Hooks
from agentkit.files import read_json

_REPLAYS = {"train": "in_process", "launch": "served"}
"""The replay of each command: two servers of the same tables."""

_STREAM = 5  # Of seeds, see `exploring.find_start`: no actor of a launched program has it.


@contextlib.contextmanager
def switched(run_directory: str | pathlib.Path, command: str) -> Iterator[None]:
    """Makes a run one that `command` goes on with, where another one began it; for what goes on with it, inside.

    Only ``config.json`` changes, and is as it was again where the run does not begin.

    Args:
        run_directory: the folder.
        command: "train" or "launch".

    Raises:
        ConfigError: no run folder; the run cannot go on so, and why; or it goes on now.
    """
    record, directory = read_record(run_directory), pathlib.Path(run_directory)
    begun_by = command_of(record)
    if begun_by == command:
        yield
        return
    _check_can_switch(record, directory, begun_by)
    path = directory / "config.json"
    other = {name: value for name, value in record.items() if name != "launch"} | {"replay": _REPLAYS[command]}
    if command == "launch":
        other["launch"] = {}
    with run_lock(directory):
        refuse_second_supervisor(directory)
        checkpoint.write_json(path, other)
    try:
        yield
    except BaseException:
        if read_json(path) == other:  # What begins writes it anew.
            checkpoint.write_json(path, record)
        raise


def _check_can_switch(record: Mapping[str, Any], directory: pathlib.Path, begun_by: str) -> None:
    why = None
    if begun_by == "offline":
        why = "it learns from data alone"
    elif "policies" in record:
        why = "of several agents, learners in one process save together, and those of a launched run apart"
    elif record.get("on_device"):
        why = "its replay and environments are on the device"
    elif record.get("data") is not None:
        why = "its replay began with data, which only a run in one process has"
    elif record.get("replay") != _REPLAYS[begun_by]:
        why = (
            f"only contents of agentkit's own replay can be taken along, and its replay is {record.get('replay')!r:.80}"
        )
    if why is not None:
        raise ConfigError(
            f"{directory} goes on by agentkit {begun_by} --resume alone: {why}. Leave --replay (replay=) out there."
        )


def refuse_second_supervisor(directory: pathlib.Path) -> None:
    """Finds a program on a host whose locks do not reach here, see `run_lock`.

    Raises:
        ConfigError: there is one.
    """
    try:
        connect_to_run(directory, timeout=1.0).close()
    except AgentkitError:
        return  # None is there, it was killed, or another run has its port now.
    raise ConfigError(
        f"A program runs in {directory} now (see: agentkit status {quote(str(directory))}). Stop it first."
    )


def as_launched(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of a checkpoint as that of a launched run; of one that is, itself.

    The first actor goes on from all steps, as do all others, who begin where the furthest one stands. States of
    callbacks are given to the nodes that have any.
    """
    if state.get("launched"):
        return dict(state)
    steps, callbacks = int(state["num_steps"]), state.get("callbacks", {})
    return {
        **state,
        "totals": {"steps": steps, "updates": int(state["learner"]["num_updates"])},
        "explored": {"actor-0": steps},
        "callbacks": dict.fromkeys(("learner-0", "evaluator-0"), callbacks) if callbacks else {},
    }


def as_of_one_process(
    found: checkpoint.Checkpoint, directory: pathlib.Path, seed: int, hooks: Hooks
) -> tuple[checkpoint.Checkpoint, Start]:
    """Returns a launched run's checkpoint as that of one process, without an actor, and what its new actor begins with.

    Its path is that of the newest checkpoint with replay's contents.

    Args:
        found: the checkpoint.
        directory: the run folder.
        seed: the experiment's.
        hooks: of the run in one process.

    Raises:
        CheckpointError: no checkpoint has replay's contents.
    """
    contents = newest_contents(directory, "replay")
    if contents is None:
        raise CheckpointError(
            f"No checkpoint in {directory} has the contents of replay, which the launched run was cut off from. Go on "
            "with agentkit launch --resume, which begins with an empty one."
        )
    explored = found.state.get("explored", {}).values()
    entropy = np.random.SeedSequence([seed, _STREAM, found.step])
    start = Start(int(entropy.generate_state(1)[0] >> 1), max(map(int, explored), default=found.step))
    callbacks = _of_all_nodes(found.state.get("callbacks", {}), hooks)
    drop_later_rows(directory, found.step)
    state = {**found.state, "counter": {"counts": {"steps": found.step}}, "callbacks": callbacks}
    return checkpoint.Checkpoint(found.step, contents.path, state), start


def _of_all_nodes(by_node: Mapping[str, Any], hooks: Hooks) -> dict[str, Any]:
    """Returns the state of each callback from the node that it is called on: evaluations are the evaluators'."""
    states = {}
    for name, callback in hooks.named():
        node = "evaluator-0" if has(callback, "on_evaluation") else "learner-0"
        if name in by_node.get(node, {}):
            states[name] = by_node[node][name]
    return states
