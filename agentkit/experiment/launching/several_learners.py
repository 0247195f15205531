"""Runs a program of several learners, who learn from the same steps, in one run folder.

What each of them saves, its replay's contents too, is in ``RUN/learners/LEARNER``, with a ``config.json`` of its own:
to whatever only reads a run, that is the folder of a run of one agent. Logs, and all else, are in ``RUN``.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.checkpoint import Checkpoint
from agentkit.distributed import Program
from agentkit.distributed.engine import Engine
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.run import (
    check_launchable,
    check_saved,
    forget_killed,
    run_program,
    run_store_values,
)
from agentkit.experiment.launching.sharing.callbacks import stopped_by
from agentkit.experiment.multi_agent.config import check_word
from agentkit.experiment.runs.config_json import check_run_directory, learner_parts, read_record, write_config
from agentkit.experiment.runs.learner_folders import contents_name, learner_folder, newest_of_each
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_for_processes, check_installed
from agentkit.experiment.runs.logs import drop_later_rows
from agentkit.experiment.runs.resume_checks import ResumeError, check_code, check_same
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.switching import refuse_second_supervisor


def run_learners(
    program: Program,
    experiments: Mapping[str, ExperimentConfig],
    *,
    resume: bool = False,
    engine: Engine | None = None,
    on_status: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Runs a program of several learners to its end, in the run folder that their experiments name, if any.

    Each learner saves by itself. Where the program is resumed, each goes on from its newest checkpoint, and steps and
    exploration from the newest of all of these.

    Args:
        program: whose learner and replay nodes have the `learner_id` of an experiment, see `learner_node`.
        experiments: what each learner learns, by its id; all in one run folder, or in none.
        resume: whether to go on with the run in the folder.
        engine: where the program runs, see `run_program`.
        on_status: see `run_program`.

    Returns:
        what `run_program` does.

    Raises:
        ConfigError: nodes without the ids of the experiments, several run folders, or one that has a run already or
            has another program running.
        ResumeError: the run is one of other learners or experiments, or one of the learners has no checkpoint.
        ProgramError: as `run_program`; or the last checkpoint of a learner was not written, or a callback failed.
    """
    _check_learners(program, experiments)
    directory = check_run_directory(next(iter(experiments.values())), resume)
    if directory is None:
        return run_program(program, engine=engine, on_status=on_status)
    directory = directory.absolute()
    with run_lock(directory):
        if resume:
            refuse_second_supervisor(directory, engine is not None and engine.store_host != "127.0.0.1")
        state = _prepare(program, experiments, directory, resume)
        forget_killed(directory, program)
        status = run_program(
            program,
            engine=engine,
            run_directory=directory,
            totals={} if state is None else state["totals"],
            values=run_store_values(state),
            on_status=on_status,
        )
    check_saved(status)
    stopped_by(status)  # Raises what a callback has raised.
    return status


def _check_learners(program: Program, experiments: Mapping[str, ExperimentConfig]) -> None:
    """Looks whether nodes and experiments belong together, and can be run in many processes."""
    if len({experiment.num_steps for experiment in experiments.values()}) != 1:
        totals = ", ".join(f"{name}={experiment.num_steps:,}" for name, experiment in experiments.items())
        raise ConfigError(
            f"num_steps: expected the same of all learners, whose actors are the same, found {totals or 'no learner'}."
        )
    for role in ("replay", "learner"):
        found = [str(node.kwargs.get("learner_id")) for node in program.nodes.values() if node.role == role]
        # Of a learner there is one, and one replay or several, which are its shards.
        if sorted(found if role == "learner" else set(found)) != sorted(experiments):
            raise ConfigError(
                f"Expected a {role} node of each of the learners {', '.join(experiments)}, found {role} nodes of: "
                f"{', '.join(found) or 'none'}. Say whose each is: program.add_node({role!r}, ..., learner_id=...)."
            )
    folders = {str(experiment.run_directory) for experiment in experiments.values()}
    if len(folders) > 1:
        raise ConfigError(
            f"run_directory: expected the same one for all learners, found {', '.join(sorted(folders))}. Each has a "
            "folder of its own in it."
        )
    for learner_id, experiment in experiments.items():
        check_word("learner_id", learner_id)
        check_launchable(experiment)
        check_for_processes(experiment)
        check_installed(experiment)
        Hooks(experiment)  # Refuses callbacks of no use.


def _prepare(
    program: Program, experiments: Mapping[str, ExperimentConfig], directory: pathlib.Path, resume: bool
) -> Mapping[str, Any] | None:
    """Looks at the run folder before anything is started; returns the newest state to go on from, if any."""
    found = _find_saved(experiments, directory) if resume else {}
    for learner_id in found:
        _check_replays(program, directory, learner_id)
    for learner_id, experiment in experiments.items():
        part = learner_folder(directory, learner_id)
        check_code(experiment, part)
        write_config(experiment, part, launch={}, learners=list(experiments))
    if not found:
        drop_later_rows(directory, 0)
        return None
    newest = max(found.values(), key=lambda each: each.step)
    drop_later_rows(directory, newest.step)  # Also of nodes that this program has no more.
    return newest.state


def _find_saved(experiments: Mapping[str, ExperimentConfig], directory: pathlib.Path) -> dict[str, Checkpoint]:
    """Returns the newest checkpoint of each learner, or none where the run has saved nothing yet."""
    if (directory / "config.json").exists():
        raise ResumeError(f"{directory} is no run of several learners: go on with it as it was begun.")
    if not (parts := learner_parts(directory)):
        raise ResumeError(f"{directory} has no run of several learners in it. Leave out resume to begin one there.")
    began = read_record(parts[0]).get("learners", [])
    if set(began) != set(experiments):
        raise ResumeError(
            f"{directory} is of the learners {', '.join(began)}, and this program has {', '.join(experiments)}. Resume "
            "with those that it began with, or start a new run."
        )
    try:
        found = newest_of_each(directory, experiments)
        for learner_id, each in experiments.items():
            part = dataclasses.replace(each, run_directory=learner_folder(directory, learner_id))
            check_same(part, found.get(learner_id))
    except CheckpointError as error:
        raise ResumeError(str(error)) from error
    return found


def _check_replays(program: Program, directory: pathlib.Path, learner_id: str) -> None:
    """Refuses replay nodes of a learner that have other names than those whose contents it saved: they begin empty."""
    saved = {path.name for path in learner_folder(directory, learner_id).glob("checkpoints/step_*/replay*")}
    nodes = [node for node in program.nodes.values() if node.role == "replay"]
    now = {contents_name(node.name) for node in nodes if node.kwargs.get("learner_id") == learner_id}
    if saved and now != saved:
        raise ResumeError(
            f"{directory}: the replay of {learner_id} was saved as {', '.join(sorted(saved))}, and the program's nodes "
            f"for it are {', '.join(sorted(now))}. Add the nodes in the order that the run began with."
        )
