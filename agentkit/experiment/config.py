"""An experiment, as data: which agent in which environment, for how long, and what to record."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
import sys
from collections.abc import Callable
from typing import Any

from agentkit import envs
from agentkit.agents import registry
from agentkit.core import Agent
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import CheckpointError, ConfigError, unknown_name
from agentkit.specs import check_is_environment

REPLAYS = ("in_process", "reverb")
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
        agent: e.g. ``agents.registry.make("sac")`` or ``dqn.Agent(dqn.Config(...))``.
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

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ConfigError(f"num_steps must be at least 1, found {self.num_steps}.")
        if self.replay not in REPLAYS:
            raise unknown_name("replay", self.replay, REPLAYS)
        if self.num_envs is not None and self.num_envs < 1:
            raise ConfigError(f"num_envs must be None or at least 1, found {self.num_envs}.")
        if self.evaluation_period and self.evaluation_episodes < 1:
            raise ConfigError(f"evaluation_episodes must be at least 1, found {self.evaluation_episodes}.")
        for name in ("evaluation_period", "checkpoint_period", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, found {getattr(self, name)}.")

    def make_environment(self, seed: int, num_envs: int | None = None) -> Any:
        """The environment, or `num_envs` of them batched, ready for an agent."""
        if isinstance(self.environment, str):
            return envs.make(self.environment, seed=seed, num_envs=num_envs)
        if num_envs is not None:
            return BatchedEnvironment([self.make_environment(seed + i) for i in range(num_envs)])
        environment = self.environment(seed)
        check_is_environment(environment)
        if hasattr(environment, "reseed") and not getattr(environment, "resumable", False):
            return ResumableEnvironment(environment, seed)
        return environment

    def describe(self) -> dict[str, Any]:
        """The experiment as plain values, for ``config.json``."""
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("agent", "environment", "run_directory")
        }
        return {
            "agent": registry.name_of(self.agent),
            "agent_config": dataclasses.asdict(self.agent.config),
            "environment": self.environment if isinstance(self.environment, str) else None,
            **settings,
        }


def write_config(experiment: ExperimentConfig, directory: pathlib.Path) -> None:
    """Writes ``config.json``: the experiment, the versions of what it ran with, and the command."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    record = {
        **experiment.describe(),
        "versions": {"python": platform.python_version(), **found},
        "command": sys.argv,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(record, indent=1) + "\n")


def read_config(directory: str | pathlib.Path, **changes: Any) -> ExperimentConfig:
    """The experiment that a run folder's ``config.json`` describes.

    Args:
        directory: the run folder.
        **changes: fields to replace, such as a larger `num_steps`.

    Raises:
        ConfigError: no such run, or one whose agent or environment was made by the user's own code;
            such a run is resumed by that code, with ``run(experiment, resume=True)``.
    """
    path = pathlib.Path(directory) / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory} is not a run folder: it has no config.json. Give the folder that train made."
        )
    record = json.loads(path.read_text())
    if record["agent"] is None or record["environment"] is None:
        raise ConfigError(
            f"The run {directory} was made with an agent or environment of your own code, which config.json cannot "
            "rebuild. Call agentkit.run(experiment, resume=True) from that code."
        )
    cls = registry.config_class(record["agent"])
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in record["agent_config"].items()}
    unknown = values.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise CheckpointError(
            f"The run {directory} has agent settings this version does not know: {sorted(unknown)}."
        )
    names = {field.name for field in dataclasses.fields(ExperimentConfig)} - {"agent", "run_directory"}
    settings = {name: value for name, value in record.items() if name in names} | changes
    agent = registry.make(record["agent"], values)
    return ExperimentConfig(agent=agent, run_directory=directory, **settings)
