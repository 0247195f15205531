"""Finds and checks the checkpoint to resume from, before anything is built."""

from __future__ import annotations

from typing import final

from agentkit import checkpoint
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config import ExperimentConfig, check_run_directory, write_config


@final
class ResumeError(CheckpointError, ConfigError):
    """Says that the run cannot be resumed: its checkpoint is damaged, or another experiment's. Nothing was trained."""


def prepare(experiment: ExperimentConfig, resume: bool) -> checkpoint.Checkpoint | None:
    """Looks at the run folder before anything is built; the checkpoint to go on from, if any."""
    directory = check_run_directory(experiment, resume)
    if directory is None:
        return None
    found = checkpoint.read_latest(directory / "checkpoints") if resume else None
    if found is not None:
        check_same(experiment, found)
        if found.state.get("launched"):
            raise CheckpointError(f"{found.path} is of a launched run: use agentkit launch --resume.")
        if found.state.get("offline"):
            raise CheckpointError(f"{found.path} is of a run from data alone: use agentkit offline --resume.")
    write_config(experiment, directory)
    return found


_FIXED = ("agent", "agent_config", "environment", "seed", "replay", "num_envs")


def check_same(experiment: ExperimentConfig, found: checkpoint.Checkpoint) -> None:
    """Refuses to go on with other settings than the saved ones, where that would mix two experiments."""
    for name in _FIXED:
        saved, now = found.state["experiment"][name], experiment.describe()[name]
        if saved != now:
            raise CheckpointError(
                f"The checkpoint {found.path} was made with {name}={saved}, and this experiment has {now}. "
                "Resume with the settings it was saved with, or start a new run."
            )
