"""Goes on in one process with a launched run, and launched with a run in one process.

Checkpoints of both have the learner's state and the contents of agentkit's own replay, and have them alike. Who acts is
another one: the actors' episodes end with the switch, their schedules go on, and their seeds are new ones.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from agentkit import checkpoint
from agentkit.callbacks.base import has
from agentkit.errors import AgentkitError, CheckpointError, ConfigError
from agentkit.experiment.runs.config_json import read_record
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.resume_checks import REPLAYS, command_of, why_not_switched
from agentkit.experiment.training.hooks import Hooks


class Start(NamedTuple):
    """Holds what an actor begins with.

    Attributes:
        seed: of its environments and keys, in [0, 2**31).
        num_steps: that it goes on from; those of all its environments together.
    """

    seed: int
    num_steps: int


def start_from(entropy: Sequence[int], num_steps: int) -> Start:
    """Returns what an actor begins with, with a seed of some numbers >= 0."""
    return Start(int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1), num_steps)


_STREAM = 5  # Of seeds, see `exploring.find_start`: no actor of a launched program has it.


@contextlib.contextmanager
def switched(run_directory: str | pathlib.Path, command: str, replay: object) -> Iterator[None]:
    """Makes a run one that `command` goes on with, where its replay is asked for and another command began the run.

    What is inside goes on with it. Only ``config.json`` changes, and is as it was again where the run does not begin.

    Args:
        run_directory: the folder.
        command: "train" or "launch".
        replay: that the run is to go on with; another than that of `command` changes nothing here.

    Raises:
        ConfigError: no run folder; the run cannot go on so, and why; or it goes on now.
    """
    if replay != REPLAYS[command]:
        yield
        return
    record, directory = read_record(run_directory), pathlib.Path(run_directory)
    begun_by = command_of(record)
    if begun_by == command:
        if record.get("replay") != REPLAYS[command]:
            raise ConfigError(f"{directory} was begun with replay={record.get('replay')!r:.80}. Leave --replay out.")
        yield
        return
    if (why := why_not_switched(record)) is not None:
        raise ConfigError(
            f"{directory} goes on by agentkit {begun_by} --resume alone: {why}. Leave --replay (replay=) out there."
        )
    path = directory / "config.json"
    other = {name: value for name, value in record.items() if name != "launch"} | {"replay": REPLAYS[command]}
    if command == "launch":
        other["launch"] = {}
    with run_lock(directory):
        refuse_second_supervisor(directory)
        checkpoint.write_json(path, other)
    written = path.stat()
    try:
        yield
    except BaseException:
        now = path.stat()  # What begins writes a file of its own.
        if (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns):
            checkpoint.write_json(path, record)
        raise


def refuse_second_supervisor(directory: pathlib.Path) -> None:
    """Finds a program on a host whose locks do not reach here, see `run_lock`.

    Raises:
        ConfigError: there is one.
    """
    from agentkit.distributed import connect_to_run  # A run in one process else needs no wire.

    try:
        connect_to_run(directory, timeout=1.0).close()
    except AgentkitError:
        return  # None is there, it was killed, or another run has its port now.
    raise ConfigError(
        f"A program runs in {directory} now (see: agentkit status {quote(str(directory))}). Stop it first."
    )


def as_launched(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of a checkpoint as that of a launched run; of one that is, itself.

    The first actor goes on where that of one process stands, as do all others, who begin where the furthest one stands.
    States of callbacks are given to the nodes that have any.
    """
    if state.get("launched"):
        return dict(state)
    steps, callbacks = int(state["num_steps"]), state.get("callbacks", {})
    stands_at = steps - int(state.get("steps_of_others", 0))
    return {
        **state,
        "totals": {"steps": steps, "updates": int(state["learner"]["num_updates"])},
        "explored": {**state.get("explored", {}), "actor-0": stands_at},
        "callbacks": dict.fromkeys(("learner-0", "evaluator-0"), callbacks) if callbacks else {},
    }


def as_of_one_process(
    found: checkpoint.Checkpoint | None, seed: int, hooks: Hooks
) -> tuple[checkpoint.Checkpoint | None, Start]:
    """Returns a checkpoint as that of one process, and what an actor begins with that has no state in it.

    A launched run's has none; its path is then that of the newest checkpoint with replay's contents.

    Args:
        found: the checkpoint; None of a run that begins.
        seed: the experiment's.
        hooks: of the run in one process.

    Raises:
        CheckpointError: no checkpoint has replay's contents.
    """
    directory = hooks.run.run_directory
    if found is None or directory is None or not found.state.get("launched"):
        return found, Start(seed, 0)
    contents = checkpoint.read_latest(directory / "checkpoints", holding="replay")
    if contents is None:
        raise CheckpointError(
            f"No checkpoint in {directory} has the contents of replay, which the launched run was cut off from. Go on "
            "with agentkit launch --resume, which begins with an empty one."
        )
    explored = found.state.get("explored", {}).values()
    start = start_from([seed, _STREAM, found.step], max(map(int, explored), default=found.step))
    callbacks = _of_all_nodes(found.state.get("callbacks", {}), hooks)
    state = {
        **found.state,
        "counter": {"counts": {"steps": found.step}},
        "callbacks": callbacks,
        "steps_of_others": found.step - start.num_steps,
    }
    return checkpoint.Checkpoint(found.step, contents.path, state), start


def _of_all_nodes(by_node: Mapping[str, Any], hooks: Hooks) -> dict[str, Any]:
    """Returns the state of each callback from the node that it is called on: evaluations are the evaluators'."""
    states = {}
    for name, callback in hooks.named():
        nodes = ["learner-0", "evaluator-0"]
        if has(callback, "on_evaluation") or has(callback, "on_evaluation_episode"):
            nodes.reverse()
        found = [by_node[node][name] for node in nodes if name in by_node.get(node, {})]
        if found:
            states[name] = found[0]
    return states
