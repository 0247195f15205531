"""An experiment, as data: which agent in which environment, for how long, and what to record."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import numbers
import os
import pathlib
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from agentkit import envs
from agentkit.agents import registry
from agentkit.core import Agent
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.resumable import ResumableEnvironment, episode_seed
from agentkit.errors import ConfigError, unknown_name
from agentkit.specs import check_is_environment

REPLAYS = ("in_process", "reverb")
_WHOLE_NUMBERS = (
    "num_steps", "seed", "num_envs", "evaluation_period", "evaluation_episodes", "checkpoint_period", "devices",
)  # fmt: skip
_PACKAGES = (
    "agentkit",
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


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """What `agentkit.run` runs.

    Attributes:
        agent: e.g. ``agents.registry.make("sac")`` or ``dqn.make_agent(dqn.Config(...))``.
        environment: a name for `agentkit.envs.make`, or a function ``seed -> environment``.
        num_steps: environment steps to train for; a resumed run goes on until this many in all.
        seed: every random choice follows from it.
        replay: "in_process" or "reverb".
        run_directory: where logs and checkpoints go; None records nothing.
        num_envs: environments stepped together by one batched actor; None for one, unbatched.
        evaluation_period: steps between evaluations; 0 for none at all.
        evaluation_episodes: episodes of each evaluation.
        checkpoint_period: steps between checkpoints; 0 saves at the end only.
        log_seconds: seconds between rows of the learner's log.
        tensorboard: write TensorBoard logs too.
        progress: show the live progress line.
        devices: JAX devices of the learner's process that share each batch; None for one, JAX's default device.
    """

    agent: Agent
    environment: str | Callable[[int], Any]
    num_steps: int
    seed: int = 0
    replay: str = "in_process"
    run_directory: str | pathlib.Path | None = None
    num_envs: int | None = None
    evaluation_period: int = 10_000
    evaluation_episodes: int = 10
    checkpoint_period: int = 10_000
    log_seconds: float = 5.0
    tensorboard: bool = False
    progress: bool = False
    devices: int | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is None and name in ("num_envs", "devices"):
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise ConfigError(f"{name} must be a whole number (an int), found {value!r}.")
            object.__setattr__(self, name, int(value))  # numpy's integers are no JSON
        if self.num_steps < 1:
            raise ConfigError(f"num_steps must be at least 1, found {self.num_steps}.")
        if self.replay not in REPLAYS:
            raise unknown_name("replay", self.replay, REPLAYS)
        if self.num_envs is not None and self.num_envs < 1:
            raise ConfigError(f"num_envs must be None or at least 1, found {self.num_envs}.")
        if self.evaluation_period and self.evaluation_episodes < 1:
            raise ConfigError(f"evaluation_episodes must be at least 1, found {self.evaluation_episodes}.")
        for name in ("evaluation_period", "checkpoint_period", "seed", "log_seconds"):
            if not getattr(self, name) >= 0:  # NaN is refused too
                raise ConfigError(f"{name} must not be negative, found {getattr(self, name)}.")
        if hasattr(self.agent, "with_num_envs"):  # Optional, see `core.Agent`.
            object.__setattr__(self, "agent", self.agent.with_num_envs(self.num_envs or 1))
        self._check_devices()

    def _check_devices(self) -> None:
        """Refuses a batch that the devices cannot share."""
        if self.devices is None:
            return
        batch_size = self.agent.batch_plan.batch_size
        if self.devices < 1 or batch_size % self.devices:
            raise ConfigError(
                f"devices must be None, or at least 1 and divide the agent's batches of {batch_size} items, found "
                f"{self.devices}."
            )

    def make_environment(self, seed: int, num_envs: int | None = None) -> Any:
        """The environment, or `num_envs` of them batched, ready for an agent."""
        if isinstance(self.environment, str):
            return envs.make(self.environment, seed=seed, num_envs=num_envs)
        if num_envs is not None:
            return self._make_batch(seed, num_envs)
        environment = self.environment(seed)
        check_is_environment(environment)
        if hasattr(environment, "reseed") and not getattr(environment, "resumable", False):
            return ResumableEnvironment(environment, seed)
        return environment

    def _make_batch(self, seed: int, num_envs: int) -> BatchedEnvironment:
        with contextlib.ExitStack() as stack:  # Closes those there are if another cannot be made.
            made = []
            for i in range(num_envs):
                made.append(self.make_environment(episode_seed(seed, i)))
                stack.callback(made[-1].close)
            batch = BatchedEnvironment(made)
            stack.pop_all()
        return batch

    def describe(self) -> dict[str, Any]:
        """The experiment as plain values (numbers, strings, lists, dicts), for ``config.json``."""
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("agent", "environment", "run_directory")
        }
        return {
            "agent": registry.name_of(self.agent),
            "agent_config": _plain(dataclasses.asdict(self.agent.config)),
            "environment": self.environment if isinstance(self.environment, str) else None,
            **settings,
        }


def _plain(value: Any) -> Any:
    """`value` as JSON has it and gives it back; a function or class by its name."""
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{value.__module__}.{name}"


def check_run_directory(experiment: ExperimentConfig, resume: bool) -> pathlib.Path | None:
    """The experiment's run folder; None if it has none.

    Raises:
        ConfigError: it has a run in it already and `resume` is False, or there is none to resume.
    """
    if experiment.run_directory is None:
        if resume:
            raise ConfigError("To resume, an experiment needs the run_directory it was saved in.")
        return None
    directory = pathlib.Path(experiment.run_directory)
    if (directory / "config.json").exists() and not resume:
        raise ConfigError(f"{directory} has a run in it already. Resume it, or choose another run_directory.")
    return directory


def write_config(
    experiment: ExperimentConfig,
    directory: pathlib.Path,
    launch: dict[str, Any] | None = None,
    offline: dict[str, Any] | None = None,
) -> None:
    """Writes ``config.json``: the experiment, how it was launched or its data, versions, and the command."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    record = {
        **experiment.describe(),
        **({} if launch is None else {"launch": launch}),
        **({} if offline is None else {"offline": offline}),
        "versions": {"python": platform.python_version(), **found},
        "command": sys.argv,
    }
    directory.mkdir(parents=True, exist_ok=True)
    # A resumed run writes it again: a kill in the middle must not leave half a file.
    temporary = directory / "config.json.tmp"
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, directory / "config.json")


def read_config(directory: str | pathlib.Path, **changes: Any) -> ExperimentConfig:
    """The experiment that a run folder's ``config.json`` describes.

    Args:
        directory: the run folder.
        **changes: fields to replace, such as a larger `num_steps`.

    Raises:
        ConfigError: no such run, or one whose agent or environment was made by the user's own code;
            such a run is resumed by that code, with ``run(experiment, resume=True)``.
    """
    record = read_record(directory)
    if record["agent"] is None or record["environment"] is None:
        raise ConfigError(
            f"The run {directory} was made with an agent or environment of your own code, which config.json cannot "
            "rebuild. Call agentkit.run(experiment, resume=True) from that code."
        )
    return experiment_from_record(record, directory, **changes)


def read_record(directory: str | pathlib.Path) -> dict[str, Any]:
    """What a run folder's ``config.json`` says.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = pathlib.Path(directory) / "config.json"
    if not path.is_file():
        raise ConfigError(f"{directory} is not a run folder: it has no config.json. Give the folder that train made.")
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}. Restore it, or train anew into another folder.") from error
    return record


def experiment_from_record(
    record: dict[str, Any], run_directory: str | pathlib.Path, **changes: Any
) -> ExperimentConfig:
    """The experiment that `ExperimentConfig.describe` described, with some fields replaced.

    Raises:
        ConfigError: its agent has settings that this version does not know.
    """
    cls = registry.config_class(record["agent"])
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in record["agent_config"].items()}
    unknown = values.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise ConfigError(
            f"The run {run_directory} has settings of agent {record['agent']!r} that this version does not know: "
            f"{sorted(unknown)}. Use the version of agentkit it was made with: {record.get('versions')}."
        )
    names = {field.name for field in dataclasses.fields(ExperimentConfig)} - {"agent", "run_directory"}
    settings = {name: value for name, value in record.items() if name in names} | changes
    agent = registry.make(record["agent"], values)
    return ExperimentConfig(agent=agent, run_directory=run_directory, **settings)
