"""Finds and checks the checkpoint to resume from, before anything is built."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, final

from agentkit import checkpoint
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config import callback_record, identity
from agentkit.experiment.config.recipes import names_only
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.runs.config_json import check_run_directory, learner_parts, names_of, read_record, write_config
from agentkit.files import as_typed


@final
class ResumeError(CheckpointError, ConfigError):
    """Says that the run cannot be resumed: its checkpoint is damaged, or another experiment's. Nothing was trained."""


_RUNS = {"train": "a run in one process that acts", "launch": "a launched run", "offline": "a run from data alone"}


REPLAYS = {"train": "in_process", "launch": "served"}
"""The replay of each command whose runs go on by the other one, too: one replay, in a process or in a server."""


def command_of(record: Mapping[str, Any]) -> str:
    """Returns the command that goes on with the run of a ``config.json``: "train", "launch" or "offline"."""
    return next((command for command in ("launch", "offline") if command in record), "train")


def check_command(command: str, directory: pathlib.Path) -> None:
    """Refuses to go on with a run that another command began, whether it has a checkpoint yet or not.

    Args:
        command: "train", "launch" or "offline".
        directory: the run folder.

    Raises:
        CheckpointError: it names the command that does go on.
    """
    if parts := learner_parts(directory):
        raise _goes_on_together(directory, names_of(parts))
    if not (directory / "config.json").is_file():
        return
    record = read_record(directory)
    if "learners" in record:
        raise _goes_on_together(directory, ", ".join(record["learners"]))
    begun_by = command_of(record)
    if begun_by != command:
        raise CheckpointError(
            f"{directory} is of {_RUNS[begun_by]}: use agentkit {begun_by} --resume.{other_way(command, record)}"
        )


def _goes_on_together(directory: pathlib.Path, names: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} is of a program of several learners ({names}), which go on together: run the code that made the "
        "program again, with resume=True."
    )


def refuse_launched(directory: pathlib.Path) -> None:
    """Says of a launched run how it goes on.

    Raises:
        ResumeError: it is one.
    """
    try:
        check_command("train", directory)
    except CheckpointError as error:
        raise ResumeError(str(error)) from error


def other_way(command: str, record: Mapping[str, Any]) -> str:
    """Returns a sentence: how a run goes on by `command`, which did not begin it; nothing where it cannot."""
    if command not in REPLAYS or why_not_switched(record) is not None:
        return ""
    how = "Launched" if command == "launch" else "In one process"
    return f" {how} it goes on by agentkit {command} --resume RUN --replay {REPLAYS[command]}."


def why_not_switched(record: Mapping[str, Any]) -> str | None:
    """Returns why a run cannot change between one process and many; None where it can."""
    begun_by, replay = command_of(record), record.get("replay")
    if begun_by == "offline":
        return "it learns from data alone"
    if record.get("on_device"):
        return "its replay and environments are on the device"
    if record.get("data") is not None:
        return "its replay began with data, which only a run in one process has"
    if record.get("ready") is not None:
        return "its environments are acted for as they are ready, and queues have other room then (ready)"
    if replay != REPLAYS[begun_by]:
        return f"only contents of agentkit's own replay can be taken along, and its replay is {replay!r:.80}"
    return None


def prepare(experiment: RunConfig, resume: bool) -> checkpoint.Checkpoint | None:
    """Looks at the run folder before anything is built, and returns the checkpoint to go on from, if any.

    Nothing is written: `begin` does that, once it is known that the run can be built.
    """
    directory = check_run_directory(experiment, resume)
    if directory is None:
        return None
    if not resume:
        return None
    check_command("train", directory)
    found = checkpoint.read_latest(directory.absolute() / "checkpoints")
    check_same(experiment, found)
    return found


def begin(experiment: RunConfig, offline: dict[str, Any] | None = None) -> str | None:
    """Writes the run folder's ``config.json``, if there is to be one; warns about code that changed since the last.

    Of a new run that shows its progress it prints the folder: what is refused was refused before.

    Args:
        experiment: the run's.
        offline: of a run from data alone, its data.

    Returns:
        a sentence on what the folder cannot name; None where it has all.
    """
    if experiment.run_directory is None:
        return None
    directory = pathlib.Path(experiment.run_directory)
    is_new = not (directory / "config.json").exists()
    check_code(experiment, directory)
    write_config(experiment, directory, offline=offline)
    if is_new and experiment.progress:
        print(f"Run folder: {as_typed(directory)}", flush=True)
    return identity.what_the_folder_lacks(experiment.describe())


_FIXED = ("seed", "replay", "ready", "init_from", "data", "on_device")


def began_as(experiment: RunConfig, found: checkpoint.Checkpoint | None) -> tuple[dict[str, Any], str] | None:
    """Returns the record that a resumed run is compared with, and where it is for messages; None where there is none.

    It is the checkpoint's, and before there is one that of ``config.json``. Agents' settings which that one lacks are
    as they are now: the run may be of an earlier version, and nothing that it has learned is lost.

    Args:
        experiment: to go on with.
        found: its newest checkpoint; None for none.
    """
    if found is not None:
        return found.state["experiment"], f"The checkpoint {found.path}"
    directory = experiment.run_directory
    if directory is None or not (pathlib.Path(directory) / "config.json").is_file():
        return None
    return _with_new_settings(read_record(directory), experiment.describe()), f"The run {directory}"


def _with_new_settings(saved: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(saved)
    if isinstance(saved.get("agent_config"), dict):
        filled["agent_config"] = {**now.get("agent_config", {}), **saved["agent_config"]}
    for part in filled.keys() & {"agent_config", "agent_parts"}:
        filled[part] = _with_new_fields(filled[part], now.get(part))
    if isinstance(saved.get("policies"), dict):
        others = now.get("policies", {})
        filled["policies"] = {
            policy_id: _with_new_settings(one, others.get(policy_id, {}))
            for policy_id, one in saved["policies"].items()
        }
    return filled


def _with_new_fields(saved: Any, now: Any) -> Any:
    if not (isinstance(saved, dict) and isinstance(now, dict)):
        return saved
    filled = {name: _with_new_fields(value, now.get(name)) for name, value in saved.items()}
    if isinstance(saved.get("fields"), dict) and saved.get("type") == now.get("type"):
        filled["fields"] = {**now.get("fields", {}), **filled["fields"]}
    return filled


def check_same(experiment: RunConfig, found: checkpoint.Checkpoint | None) -> None:
    """Refuses to go on with other settings or parts than the saved ones, where that would mix two experiments.

    Warns of callbacks that are missing and do not change the training.

    Args:
        experiment: to go on with.
        found: its newest checkpoint; None of a run that has none yet, or has not begun.

    Raises:
        CheckpointError: it names the part; or the total is as `check_total` refuses it.
    """
    if (began := began_as(experiment, found)) is None:
        return
    check_same_as(began[0], experiment, began[1])
    if found is not None:
        check_total(experiment, found)
    if experiment.num_envs is not None or isinstance(experiment.environment, str):
        check_num_envs(experiment, *began)  # Else a batch may be handed in: see `check_batch`.


def check_batch(experiment: RunConfig, found: checkpoint.Checkpoint | None) -> None:
    """Refuses, as `check_same`, another number of environments, which is known of any batch once it is made.

    Raises:
        CheckpointError: it names both.
    """
    if (began := began_as(experiment, found)) is not None:
        check_num_envs(experiment, *began)


def check_total(experiment: RunConfig, found: checkpoint.Checkpoint) -> None:
    """Refuses a lower total than before that the run is past already.

    The last round of a run may take it past its own total, with which it may be resumed.

    Raises:
        CheckpointError: it says how far the run is.
    """
    total = experiment.num_steps
    if total < min(found.step, found.state["experiment"].get("num_steps", 0)):
        units = "updates" if found.state.get("offline") else "steps"
        raise CheckpointError(
            f"The checkpoint {found.path} has {found.step:,} {units} already, and num_{units}={total:_} (--{units}) is "
            "the total, those included. Give a larger one, or leave it out."
        )


def check_same_as(saved: Mapping[str, Any], experiment: RunConfig, where: str) -> None:
    """Refuses to go on as `check_same` does, but for the number of environments.

    Args:
        saved: what the experiment's `describe` returned then.
        experiment: to go on with.
        where: it is saved, for messages.

    Raises:
        CheckpointError: it names the part.
    """
    now = experiment.describe()
    differs = identity.difference(saved, now)
    for name in _FIXED:
        # Runs of earlier versions have no `ready`, and no `on_device`.
        if differs is None and _told_apart(saved.get(name)) != _told_apart(now[name]):
            differs = name, saved.get(name), now[name]
    if differs is not None:
        raise _differs(where, *differs)
    callback_record.check_same(saved.get("callbacks", []), now["callbacks"], where)


def _told_apart(value: Any) -> Any:
    """Returns what two settings are compared by: one replay has two names, of one process and of many."""
    return "in_process" if value == "served" else names_only(value) or None


def check_num_envs(experiment: RunConfig, record: Mapping[str, Any], where: str) -> None:
    """Refuses another number of environments than a record of the experiment has; `where` it is, for the message.

    Raises:
        CheckpointError: it names both.
    """
    saved = record.get("num_envs")
    if saved != experiment.num_envs:
        raise _differs(where, "num_envs", saved, experiment.num_envs)


def _differs(where: str, what: str, saved: object, now: object) -> CheckpointError:
    return CheckpointError(
        f"{where} was made with {what}={saved}, and this experiment has {now}. Resume with the "
        "settings it was saved with, or start a new run."
    )


def check_code(experiment: RunConfig, directory: pathlib.Path) -> None:
    """Warns about code that has changed since the folder's ``config.json`` was written, if it was."""
    if (directory / "config.json").is_file():
        identity.warn_of_changes(read_record(directory), experiment.describe(), directory)
