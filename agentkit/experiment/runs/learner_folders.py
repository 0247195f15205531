"""Where a run of several learners, or of several agents, keeps what a run of one has not.

Each learner of a launched run writes its own checkpoints, in ``RUN/learners/LEARNER``; of several agents it has the
name of its policy. Pools of opponents, where there are any, are in ``RUN/opponents``. A policy of another run that
plays in this one is in ``RUN/frozen-POLICY.npz``.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from agentkit import checkpoint
from agentkit.checkpoint import Checkpoint
from agentkit.errors import CheckpointError
from agentkit.experiment.runs.config_json import LEARNERS, read_record

HANDOVER = "replay_handover"
"""Folder beside ``checkpoints``: what a replay node held that was stopped, where no checkpoint has it."""


def learner_folder(run: str | pathlib.Path, learner_id: str) -> pathlib.Path:
    """Returns the folder in which one of several learners keeps its checkpoints."""
    return all_learners(run) / learner_id


def pools_folder(run: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder in which the pools of opponents are kept."""
    return pathlib.Path(run) / "opponents"


def read_pools(run: str | pathlib.Path, num_steps: int | None = None) -> dict[str, Any] | None:
    """Returns the state of the pools of opponents in their folder; None where there is none.

    Args:
        run: the run folder.
        num_steps: leaves out parameters that were kept after so many steps: learners of a program that was killed go
            back to their checkpoints, while pools are saved as they change. None leaves out nothing.

    Raises:
        CheckpointError: it is damaged.
    """
    found = checkpoint.read_latest(pools_folder(run))
    if found is None or num_steps is None:
        return None if found is None else found.state
    kept = {
        policy_id: {step: each for step, each in pool.items() if int(step) <= num_steps}
        for policy_id, pool in found.state["pools"].items()
    }
    return {**found.state, "pools": kept}


def frozen_file(run: str | pathlib.Path, policy_id: str) -> pathlib.Path:
    """Returns the policy file of a `Frozen` policy as it was when the run began."""
    return pathlib.Path(run) / f"frozen-{policy_id}.npz"


def is_launched(run: str | pathlib.Path) -> bool:
    """Returns whether several learners have checkpoints of their own in a run folder.

    While a run changes between one process and many, it has both kinds: ``config.json`` says which one it is of.
    """
    folder = pathlib.Path(run)
    is_train = (folder / "config.json").is_file() and "launch" not in read_record(folder)
    return all_learners(run).is_dir() and not is_train


def all_learners(run: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder that has those of all learners of a launched run."""
    return pathlib.Path(run) / LEARNERS


def learner_folders(run: str | pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of all learners of a launched run that has several; of any other run, none."""
    return sorted(each for each in all_learners(run).iterdir() if each.is_dir()) if is_launched(run) else []


def newest_of_each(run: str | pathlib.Path, learner_ids: Iterable[str]) -> dict[str, Checkpoint]:
    """Returns the newest checkpoint of each of several learners, or none where the run has saved nothing yet.

    Raises:
        CheckpointError: some have one, and others have not.
    """
    found = {each: checkpoint.read_latest(learner_folder(run, each) / "checkpoints") for each in learner_ids}
    saved = {learner_id: each for learner_id, each in found.items() if each is not None}
    if lacking := found.keys() - saved.keys() if saved else ():
        raise CheckpointError(
            f"{run}: the learners {', '.join(sorted(lacking))} have no checkpoint, and others have. The run ended "
            "while it saved for the first time: start a new one."
        )
    return saved


def handover_folder(folder: str | pathlib.Path, contents: str) -> pathlib.Path:
    """Returns where a replay node leaves what it holds, if it is stopped and no checkpoint will have it.

    Args:
        folder: of the run, or of one of several learners.
        contents: see `contents_name`.
    """
    return pathlib.Path(folder) / (HANDOVER if contents == "replay" else f"{HANDOVER}-of-{contents}")


def newest_contents(folder: str | pathlib.Path, contents: str, begins: bool = True) -> Checkpoint | None:
    """Returns what to fill a replay from: the newest checkpoint with its contents, or what its last node handed over.

    A checkpoint without contents (a learner wrote it that could not reach the server) is passed over.

    Args:
        folder: of the run, or of one of several learners.
        contents: see `contents_name`.
        begins: a program, or a run of one process, goes on from the newest checkpoint, and so with the contents of the
            same moment where they are in it; a node that is started again within a program goes on with the newest.

    Raises:
        CheckpointError: every one is damaged.
    """
    checkpoints = pathlib.Path(folder) / "checkpoints"
    if begins:
        newest = checkpoint.read_latest(checkpoints)
        if newest is None or (newest.path / contents).is_dir():
            return newest
    found = checkpoint.read_latest(checkpoints, holding=contents)
    handover = checkpoint.read_latest(handover_folder(folder, contents))
    return handover if found is None or (handover is not None and handover.step >= found.step) else found


def contents_name(replay_node: str) -> str:
    """Returns the name of a replay node's contents in a checkpoint: "replay", and of a second one its own name."""
    return "replay" if replay_node == "replay-0" else replay_node
