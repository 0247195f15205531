"""Where a run of several learners, or of several agents, keeps what a run of one has not.

Each learner of a launched run writes its own checkpoints, in ``RUN/learners/LEARNER``; of several agents it has the
name of its policy. Pools of opponents, where there are any, are in ``RUN/opponents``. A policy of another run that
plays in this one is in ``RUN/frozen-POLICY.npz``.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from agentkit import checkpoint
from agentkit.checkpoint import Checkpoint
from agentkit.errors import CheckpointError
from agentkit.experiment.runs.config_json import LEARNERS, read_record


def learner_folder(run: str | pathlib.Path, learner_id: str) -> pathlib.Path:
    """Returns the folder in which one of several learners keeps its checkpoints."""
    return all_learners(run) / learner_id


def pools_folder(run: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder in which the pools of opponents are kept."""
    return pathlib.Path(run) / "opponents"


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


def contents_name(replay_node: str) -> str:
    """Returns the name of a replay node's contents in a checkpoint: "replay", and of a second one its own name."""
    return "replay" if replay_node == "replay-0" else replay_node
