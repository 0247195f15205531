"""Carries what a run of several agents has saved over to where the other command looks for it.

In one process one checkpoint has the learners and replays of all policies; launched, each learner writes its own, and
the pools of opponents have a folder (see `learner_folders`). Which of the two count says ``config.json``: those of the
other kind are written before it changes, and the old ones deleted once the run has begun. So a kill at any instant
leaves a run that goes on.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from agentkit import checkpoint
from agentkit.errors import CheckpointError
from agentkit.experiment.runs.learner_folders import (
    HANDOVER,
    all_learners,
    contents_name,
    learner_folder,
    learner_folders,
    newest_contents,
    newest_of_each,
    pools_folder,
    read_pools,
)
from agentkit.experiment.training.switched_state import as_launched
from agentkit.files import refusing_unwritable


def carry(directory: pathlib.Path, record: Mapping[str, Any], command: str) -> None:
    """Writes the newest checkpoint of a run of several agents where another command looks for it; of none, nothing.

    Files of replays are linked, and where the disk has no links copied.

    Args:
        directory: the run folder, which the caller holds.
        record: its ``config.json``, of the command that began the run.
        command: that is to go on with it, "train" or "launch".

    Raises:
        CheckpointError: nothing can be read or written, or replay's contents lack.
        ConfigError: what another change has left cannot be removed.
    """
    drop_others(directory, "launch" if command == "train" else "train")
    if command == "launch":
        _carry_to_learners(directory)
    else:
        _carry_to_one(directory, record)


def drop_others(directory: pathlib.Path, command: str) -> None:
    """Deletes the checkpoints of a run of several agents that are of the other kind than those of its `command`.

    Args:
        directory: the run folder, which the caller holds, with a ``config.json`` of this command.
        command: "train" or "launch".

    Raises:
        ConfigError: the disk refuses.
    """
    others = [directory / "checkpoints"] if command == "launch" else [all_learners(directory), pools_folder(directory)]
    for folder in others:
        if folder.is_dir():
            with refusing_unwritable(folder):
                shutil.rmtree(folder)


def _carry_to_learners(directory: pathlib.Path) -> None:
    found = checkpoint.read_latest(directory / "checkpoints")
    if found is None:
        return
    launched = as_launched(found.state)
    names = ("experiment", "num_steps", "totals", "explored", "callbacks")
    shared = {"launched": True, **{name: launched[name] for name in names if name in launched}}
    for number, (policy_id, learner) in enumerate(launched["learner"].items()):
        link = functools.partial(_link_all, found.path / f"replay-{policy_id}")
        folder, name = learner_folder(directory, policy_id) / "checkpoints", contents_name(f"replay-{number}")
        checkpoint.write(folder, found.step, {**shared, "learner": learner}, {name: link})
    if "self_play" in launched:
        pools = {name: launched["self_play"][name] for name in ("episode", "pools")}
        newest = max((int(step) for pool in pools["pools"].values() for step in pool), default=0)
        checkpoint.write(pools_folder(directory), newest, pools, max_to_keep=1)


def _carry_to_one(directory: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Takes of each policy its newest state and its replay's newest contents; steps go on from the greatest."""
    states = newest_of_each(directory, [folder.name for folder in learner_folders(directory)])
    if not states:
        return
    found = {name: _newest_contents(learner_folder(directory, name)) for name in states}
    if lacking := [policy_id for policy_id, each in found.items() if each is None]:
        raise CheckpointError(
            f"{directory}: no checkpoint of {', '.join(lacking)} has the contents of replay, which the launched run "
            "was cut off from. Go on with agentkit launch --resume, which begins with an empty one."
        )
    # In the order of their replays' numbers: that of the policies.
    saved = sorted(((path, name) for name, path in found.items() if path), key=lambda each: _number_of(each[0]))
    newest = max(states.values(), key=lambda each: each.step)
    names = ("launched", "num_steps", "totals", "explored", "callbacks")
    state = {
        **{name: newest.state[name] for name in names if name in newest.state},
        "experiment": {name: value for name, value in record.items() if name not in ("launch", "versions", "command")},
        "num_agent_steps": int(newest.state["totals"].get("agent_steps", newest.step)),
        "mid_episode": False,
        "learner": {policy_id: states[policy_id].state["learner"] for _, policy_id in saved},
    }
    if (pools := read_pools(directory, newest.step)) is not None:
        state["self_play"] = pools
    contents = {f"replay-{name}": functools.partial(_link_all, path) for path, name in saved}
    checkpoint.write(directory / "checkpoints", newest.step, state, contents)


def _newest_contents(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the newest contents of a learner's replay, of which it has one; None where it has none."""
    kept = [*folder.glob("checkpoints/step_*/replay*"), *folder.glob(f"{HANDOVER}*/step_*/replay*")]
    read = [(found, name) for name in {path.name for path in kept} if (found := newest_contents(folder, name))]
    return max(((found.step, found.path / name) for found, name in read), default=(0, None))[1]


def _number_of(contents: pathlib.Path) -> tuple[int, str]:
    return len(contents.name), contents.name


def _link_all(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Gives files, which nobody writes again, a second name in another folder."""
    shutil.copytree(source, folder, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # A disk without links.
        shutil.copy2(source, target)
