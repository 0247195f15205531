"""Where a run of several agents keeps what a run of one has not.

Each learner of a launched run writes its own checkpoints, in ``RUN/learners/POLICY``, and its pools of opponents, where
there are any, are in ``RUN/opponents``. A policy of another run that plays in this one is in ``RUN/frozen-POLICY.npz``.
"""

from __future__ import annotations

import pathlib
from typing import Any

from agentkit import checkpoint
from agentkit.checkpoint import Checkpoint
from agentkit.errors import CheckpointError
from agentkit.experiment.policies.restore_policy import find_checkpoint, parse_step

_LEARNERS = "learners"


def learner_folder(run: str | pathlib.Path, policy_id: str) -> pathlib.Path:
    """Returns the folder in which the learner of a policy keeps its checkpoints."""
    return pathlib.Path(run) / _LEARNERS / policy_id


def pools_folder(run: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder in which the pools of opponents are kept."""
    return pathlib.Path(run) / "opponents"


def frozen_file(run: str | pathlib.Path, policy_id: str) -> pathlib.Path:
    """Returns the policy file of a `Frozen` policy as it was when the run began."""
    return pathlib.Path(run) / f"frozen-{policy_id}.npz"


def is_launched(run: str | pathlib.Path) -> bool:
    """Returns whether learners of several policies have checkpoints of their own in a run folder."""
    return (pathlib.Path(run) / _LEARNERS).is_dir()


def learner_folders(run: str | pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of all learners of a launched run of several agents; of any other run, none."""
    return sorted((pathlib.Path(run) / _LEARNERS).iterdir()) if is_launched(run) else []


def find_policies(run: str | pathlib.Path, which: str | int) -> Checkpoint:
    """Returns a checkpoint of a run of several agents; of a launched one, what its learners have saved, as one.

    Learners of a launched run save in the same periods, and not at the same steps. The step is that of the oldest. Its
    pools of opponents are those of now.

    Args:
        run: the run folder.
        which: "newest", or a step; of a launched run each learner's newest up to it.

    Raises:
        ConfigError: there is none of that step, or of a launched run up to it.
        CheckpointError: there is none that can be read.
    """
    if not is_launched(run):
        return find_checkpoint(run, which)
    found = {folder.name: _find_up_to(folder, which) for folder in learner_folders(run)}
    if not found:
        raise CheckpointError(f"The run {run} has no checkpoint yet. Train it for longer.")
    oldest = min(found.values(), key=lambda each: each.step)
    learners = {policy_id: each.state["learner"] for policy_id, each in found.items()}
    state: dict[str, Any] = {"learner": learners}
    if (pools := checkpoint.read_latest(pools_folder(run))) is not None:
        state["self_play"] = pools.state
    return Checkpoint(oldest.step, pathlib.Path(run) / _LEARNERS, state)


def _find_up_to(folder: pathlib.Path, which: str | int) -> Checkpoint:
    if which not in ("newest", "best"):
        newest = parse_step(which)
        which = max((step for step in checkpoint.steps(folder / "checkpoints") if step <= newest), default=newest)
    return find_checkpoint(folder, which)
