"""Writes an experiment to the ``config.json`` of its run folder, and makes it again from there."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from agentkit import checkpoint
from agentkit.agents.common.ranges import check_bool
from agentkit.errors import AgentkitError, ConfigError, our_name
from agentkit.experiment.config import identity
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.runs.lock import unwritable
from agentkit.experiment.runs.record_check import check_record
from agentkit.files import MOST_JSON, check_path, read_json, size_in_words
from agentkit.version import __version__

_PACKAGES = (
    "jax",
    "jaxlib",
    "numpy",
    "dm-haiku",
    "optax",
    "rlax",
    "dm-reverb",
    "gymnasium",
    "mujoco",
)

_Experiment = TypeVar("_Experiment", bound=Any)

LEARNERS = "learners"
"""Folder in the run's: what each learner of a program of several has for itself."""


def check_run_directory(experiment: RunConfig, resume: bool) -> pathlib.Path | None:
    """Returns the experiment's run folder; None if it has none.

    Raises:
        ConfigError: it has a run in it already and `resume` is False, or there is none to resume.
    """
    check_bool("resume", resume)
    if experiment.run_directory is None:
        if resume:
            raise ConfigError("To resume, an experiment needs the run_directory it was saved in.")
        return None
    directory = pathlib.Path(experiment.run_directory)
    if not resume:
        refuse_of_several_learners(directory)
    if (directory / "config.json").exists() and not resume:
        raise ConfigError(
            f"{directory} has a run in it already. Go on with it by resume=True (agentkit train --resume "
            f"{directory}), or choose another run_directory."
        )
    return directory


def with_whole_path(experiment: _Experiment) -> _Experiment:
    """Returns an experiment whose run folder stays the same one where an environment changes the working directory."""
    given: str | pathlib.Path | None = experiment.run_directory
    if given is None or pathlib.Path(given).is_absolute():
        return experiment
    return dataclasses.replace(experiment, run_directory=pathlib.Path(given).absolute())


def refuse_of_several_learners(directory: pathlib.Path) -> None:
    """Refuses to begin a run in the folder of a program of several learners, or in that of one of them.

    Raises:
        ConfigError: it says how the program goes on.
    """
    path = directory.absolute()
    if parts := learner_parts(path):
        found = "has a run of several learners in it already"
    elif path.parent.name == LEARNERS and (parts := list(filter(_is_of_several, learner_parts(path.parents[1])))):
        found = "is a folder of a run of several learners, which go on together"
    else:
        return
    raise ConfigError(
        f"{directory} {found} ({names_of(parts)}). Go on with it by the code that made it, with resume=True, or choose "
        "another run_directory."
    )


def learner_parts(directory: str | pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of the learners of a program of several, each that of a run of one agent; else none."""
    return sorted(path.parent for path in pathlib.Path(directory, LEARNERS).glob("*/config.json"))


def _is_of_several(part: pathlib.Path) -> bool:
    return bool(read_record(part).get("learners"))


def names_of(parts: Sequence[pathlib.Path]) -> str:
    """Returns the names of several learners for a message, by their folders."""
    return ", ".join(path.name for path in parts)


def write_config(
    experiment: RunConfig,
    directory: pathlib.Path,
    launch: dict[str, Any] | None = None,
    offline: dict[str, Any] | None = None,
    learners: Sequence[str] = (),
) -> None:
    """Writes ``config.json``: the experiment, how it was launched or its data, versions, and the command.

    Args:
        experiment: the run's.
        directory: its folder, which is made if needed.
        launch: of a launched run, how.
        offline: of a run from data alone, its data.
        learners: of a program of several learners, the names of all; the folder is that of one of them.

    Raises:
        ConfigError: the disk refuses, or a setting is too large for the file to be read again.
    """
    found = {"agentkit": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    record = {
        **experiment.describe(),
        **({} if launch is None else {"launch": launch}),
        **({} if offline is None else {"offline": offline}),
        **({"learners": list(learners)} if learners else {}),
        "versions": {"python": platform.python_version(), **found},
        "command": _without_secrets(sys.argv),
    }
    _check_size(directory / "config.json", record)
    # A resumed run writes it again: neither a kill in the middle nor a power failure may leave half a file.
    try:
        directory.mkdir(parents=True, exist_ok=True)
        checkpoint.write_json(directory / "config.json", record)
        for folder in (directory, directory.parent):
            checkpoint.sync(folder)
    except OSError as error:
        raise unwritable(directory, error) from error


def _check_size(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Refuses settings of more bytes than are read again: the run could be neither resumed nor loaded."""
    size = len(json.dumps(record, indent=1)) + 1  # And a newline.
    if size > MOST_JSON:
        sizes = {name: len(json.dumps(value, indent=1)) for name, value in record.items()}
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"{path} would have {size_in_words(size)}, and at most {size_in_words(MOST_JSON)} are read again to resume "
            f"or load the run; {largest} alone {size_in_words(sizes[largest])}. Give the path of a file in its place."
        )


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Returns a command line without the run id, for a file that others may read."""
    kept = list(words)
    for i, word in enumerate(kept):
        if word == "--run-id" and i + 1 < len(kept):
            kept[i + 1] = "..."
        elif word.startswith("--run-id="):
            kept[i] = "--run-id=..."
    return kept


def read_config(directory: str | pathlib.Path, *, imports: Sequence[str] = (), **changes: Any) -> ExperimentConfig:
    """Returns the experiment that a run folder's ``config.json`` describes, made again.

    Args:
        directory: the run folder.
        imports: packages outside of agentkit whose functions the folder may name; a folder may come from a stranger.
            Modules of yours that this program has loaded need not be named.
        **changes: fields to replace, such as a larger `num_steps`, or an `environment` that cannot be made again.

    Raises:
        ConfigError: no such run; or a part of it was a lambda, a closure or of ``__main__``: such a run is resumed by
            the code that made it, with ``run(experiment, resume=True)``.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    return experiment_from_record(read_record(directory), directory, imports=imports, **changes)


def read_record(directory: str | pathlib.Path) -> dict[str, Any]:
    """Returns the content of a run folder's ``config.json``.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    check_path("run folder", directory, "An experiment goes on by agentkit.run(experiment, resume=True).")
    path = pathlib.Path(directory) / "config.json"
    if not path.is_file() and (parts := learner_parts(directory)):
        raise ConfigError(
            f"{directory} is the folder of a program of several learners ({names_of(parts)}). Each has a run folder of "
            f"its own in it, to load and to evaluate, such as {parts[0]}; the code that made the program goes on with "
            "all of them, with resume=True."
        )
    if not path.is_file():
        inside = sorted(path.parent.glob("*/config.json"))  # Of a group of seeds.
        advice = f"Runs are in it, such as {inside[0].parent}." if inside else "Give the folder that train made."
        found = "it has no config.json" if path.parent.exists() else "there is no such file or folder"
        raise ConfigError(f"{directory} is not a run folder: {found}. {advice}")
    try:
        record: dict[str, Any] = read_json(path)
        check_record(record)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    return record


def damaged(path: pathlib.Path, error: Exception) -> ConfigError:
    """Returns the error for a file of a run folder that is not what agentkit wrote."""
    return ConfigError(
        f"{path} is damaged: {str(error)[:200].rstrip('.')}. Restore it, or train anew into another folder."
    )


def experiment_from_record(
    record: dict[str, Any], run_directory: str | pathlib.Path, *, imports: Sequence[str] = (),
    file: str = "config.json", **changes: Any,
) -> ExperimentConfig:  # fmt: skip
    """Returns the experiment that `ExperimentConfig.describe` described, with some fields replaced.

    An environment that is given has the record's wrappers around it, unless others are given, but not the arguments of
    the record's environment. Warns of code that has changed since. Callbacks are left out: see
    `callback_record.rebuild`. Messages name the `file` in the run folder that the record is from.

    Raises:
        ConfigError: it cannot be made again, or has settings that this version does not know.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    if "policies" in record:
        raise ConfigError(
            f"{run_directory} is a run of several agents, and this is for runs of one. See docs/several_agents.md: "
            "'agentkit evaluate', 'agentkit train --resume', agentkit.load(run, policy=...) and Frozen take it."
        )
    for name in changes:
        _refuse_setting(name, record, run_directory)
    wanted: tuple[str, ...] = ()
    if "agent" not in changes:
        wanted += identity.AGENT_PARTS
    if "environment" not in changes:
        wanted += identity.ENVIRONMENT_PARTS
    elif "wrappers" not in changes:
        wanted += ("wrappers",)
    if "wrappers" in changes:
        wanted = tuple(name for name in wanted if name != "wrappers")
    made: dict[str, Any] = {}
    try:
        check_record(record)
        checked = identity.check_rebuildable(record, run_directory, imports, wanted)
        if "agent" not in changes:
            made["agent"] = identity.rebuild_agent(record, checked, run_directory)
        if "environment" not in changes:
            made |= identity.rebuild_environment(record, checked)
        if "wrappers" in checked:
            made["wrappers"] = checked["wrappers"].build()
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, AgentkitError):
            raise
        raise damaged(pathlib.Path(run_directory) / file, error) from error
    names = {field.name for field in dataclasses.fields(ExperimentConfig)}
    names -= {"agent", "run_directory", "environment", "environment_settings", "wrappers", "callbacks"}
    settings = {name: value for name, value in record.items() if name in names}
    if isinstance(settings.get("replay"), dict) and "replay" not in changes:
        settings["replay"] = identity.rebuild_replay(settings["replay"], run_directory, imports)
    if "loggers" in settings:
        settings["loggers"] = identity.rebuild_loggers(settings["loggers"], run_directory, imports)
    if "num_steps" not in settings | changes:
        raise damaged(pathlib.Path(run_directory) / file, ValueError("expected num_steps, found none"))
    experiment = ExperimentConfig(run_directory=run_directory, **(settings | made | changes))
    saved = {name: record[name] for name in wanted if name in record}
    identity.warn_of_changes(saved, experiment.describe(), run_directory)
    return experiment


def _refuse_setting(name: str, record: dict[str, Any], run_directory: str | pathlib.Path) -> None:
    """Refuses to change a setting of a run's agent, by its name or by another library's."""
    if name in {field.name for field in dataclasses.fields(ExperimentConfig)}:
        return
    settings = record.get("agent_config")
    known: dict[str, Any] = settings if isinstance(settings, dict) else {}
    if name in known or our_name(name, known) is not None:
        raise ConfigError(
            f"{name}: a run keeps the settings of its agent. Begin a new one with other settings and what this one has "
            f"learned: init_from={str(run_directory)!r}."
        )
