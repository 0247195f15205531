"""Lets Ray Tune search an experiment's settings: ``ray.tune.Tuner(agentkit.tune.trainable(experiment), ...)``.

Ray Tune is optional, and imported here alone; the extra `tune` brings it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentkit import checkpoint
from agentkit.agents import registry
from agentkit.errors import AgentkitError, ConfigError, missing_extra, unknown_name
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.identity import describe_agent
from agentkit.experiment.sweeps.jobs import FAILED, Job, JobProcesses, read_evaluations, read_outcome

_POLL_SECONDS = 0.2
_REPORTED = "reported"  # The log that goes with a checkpoint may have later evaluations: training goes on meanwhile.
_FIELDS = ("num_envs", "seed", "num_steps", "environment_settings", "wrappers")


def trainable(
    experiment: ExperimentConfig | Callable[[dict[str, Any]], ExperimentConfig],
) -> Callable[[dict[str, Any]], None]:
    """Returns a function for ``ray.tune.Tuner`` that trains with the settings that Tune chooses.

    It reports each evaluation, as ``episode_return``, ``steps``, ``updates`` and so on, with the newest checkpoint; a
    trial that Tune pauses or restores goes on from there. Training has a process of its own, which ends with Tune's.

    Args:
        experiment: what to run. Tune's settings are those of its agent by name, such as ``learning_rate``, and
            ``num_envs``, ``seed``, ``num_steps``, ``environment_settings`` and ``wrappers`` of the experiment. Or a
            function that makes it of Tune's settings, for anything else.

    Raises:
        ConfigError: the experiment evaluates never, or has a run folder: Tune has its own.
        MissingExtraError: Ray Tune is not installed.
    """
    _tune()
    if isinstance(experiment, ExperimentConfig):
        _check(experiment)

    def train(settings: dict[str, Any]) -> None:
        chosen = (
            with_settings(experiment, settings) if isinstance(experiment, ExperimentConfig) else experiment(settings)
        )
        _check(chosen)
        _train(chosen)

    return train


def with_settings(experiment: ExperimentConfig, settings: Mapping[str, Any]) -> ExperimentConfig:
    """Returns an experiment with other settings: of its agent, or of itself, by name.

    Raises:
        ConfigError: a value is not in its range, or the agent has parts of your own, which may depend on its settings.
        UnknownNameError: there is no such setting; proposes the nearest name.
    """
    own = {name: value for name, value in settings.items() if name in _FIELDS}
    of_agent = {name: value for name, value in settings.items() if name not in _FIELDS}
    config = experiment.agent.config
    known = [field.name for field in dataclasses.fields(config)]
    for name in of_agent:
        if name not in known:
            raise unknown_name("setting", name, (*known, *_FIELDS))
    if of_agent:
        agent = registry.name_of(experiment.agent)
        if agent is None or describe_agent(experiment.agent, experiment.num_envs or 1)["agent_parts"]:
            raise ConfigError(
                "The agent has parts of your own. Give trainable a function that makes the experiment of Tune's "
                "settings."
            )
        own["agent"] = registry.module(agent).make_agent(dataclasses.replace(config, **of_agent))
    return dataclasses.replace(experiment, **own)


def _tune() -> Any:
    try:
        import ray.tune
    except ImportError as error:
        raise missing_extra("ray[tune]", "tune") from error
    return ray.tune


def _check(experiment: ExperimentConfig) -> None:
    if not evaluation_plan(experiment).period:
        raise ConfigError("Tune compares evaluations: evaluation_period must not be 0.")
    if experiment.run_directory is not None:
        raise ConfigError(
            f"Tune gives each trial its folder: leave out run_directory, found {experiment.run_directory}."
        )


def _train(experiment: ExperimentConfig) -> None:
    """Runs one trial in Tune's process: starts the training, and reports what it logs."""
    tune = _tune()
    context = tune.get_context()
    directory = pathlib.Path(context.get_trial_dir()) / "run"
    reported = None
    if (found := tune.get_checkpoint()) is not None:
        reported = found.get_metadata().get(_REPORTED)
        shutil.rmtree(directory, ignore_errors=True)
        with found.as_directory() as saved:
            shutil.copytree(saved, directory)
    job = Job("trial", dataclasses.replace(experiment, run_directory=directory, progress=False))
    if reported is None:  # It begins, or the checkpoint is an earlier version's.
        reported = len(read_evaluations(directory))
    cpus = context.get_trial_resources().required_resources.get("CPU", 1)
    with JobProcesses(max(int(cpus), 1)) as processes:
        processes.start(job)
        while processes.running:
            time.sleep(_POLL_SECONDS)
            processes.poll()
            for record in read_evaluations(directory)[reported:]:
                if processes.running and record["steps"] >= experiment.num_steps:
                    break  # The last one goes with the last checkpoint, which comes after it.
                reported += 1
                _report(tune, record, directory, reported)
    outcome = read_outcome(directory)
    if outcome is None or outcome.state == FAILED:
        raise AgentkitError(f"The run {directory} has failed: {outcome.error if outcome else 'it ended at once'}")


def _report(tune: Any, record: dict[str, float], directory: pathlib.Path, number: int) -> None:
    """Tells Tune of an evaluation, the so many-th of its trial, with the newest checkpoint if there is one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
        made = tune.Checkpoint.from_directory(copy) if _copy_run(directory, pathlib.Path(copy)) else None
        if made is not None:
            made.set_metadata({_REPORTED: number})
        tune.report(record, checkpoint=made)


def _copy_run(directory: pathlib.Path, copy: pathlib.Path) -> bool:
    """Copies what a run is resumed from, its newest checkpoint alone, and its best policy if that is kept.

    Returns:
        False if it has no checkpoint yet.
    """
    for _ in range(3):  # Training goes on meanwhile, and may replace the checkpoint.
        steps = checkpoint.steps(directory / "checkpoints")
        if not steps:
            return False
        newest = max((directory / "checkpoints").glob(f"step_{steps[-1]:012d}*"))
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(newest, copy / "checkpoints" / newest.name)
            if (directory / "best").is_dir():
                shutil.copytree(directory / "best", copy / "best", ignore=shutil.ignore_patterns(".partial-*"))
            shutil.copytree(directory / "logs", copy / "logs", dirs_exist_ok=True)
            shutil.copy2(directory / "config.json", copy)
            return True
        for name in ("checkpoints", "best"):
            shutil.rmtree(copy / name, ignore_errors=True)
    return False
