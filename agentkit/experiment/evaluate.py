"""Evaluation: the policy to be judged by, on an environment of its own."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint, envs
from agentkit.actors import PolicyActor
from agentkit.environment_loop import EnvironmentLoop
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.learning import Learner, LearnerOutlets
from agentkit.specs import make_environment_spec
from agentkit.variables import VariableClient, VariableStore


class Evaluator:
    """Runs episodes with the evaluation policy and the newest parameters; a context manager.

    Evaluation number k of a run is a function of the seed, k and the parameters, and changes
    nothing in the training.
    """

    def __init__(self, experiment: ExperimentConfig, networks: Any, store: VariableStore):
        """Makes an environment of its own, of the experiment's kind."""
        self._seed = experiment.seed
        self._environment = experiment.make_environment(_seed(experiment.seed, 0))
        self._policy = experiment.agent.make_policy(networks, evaluation=True)
        self._store = store

    def run(self, num_episodes: int, number: int) -> dict[str, float]:
        """The record of evaluation `number`: mean, least and greatest return, mean length."""
        records = self.episodes(num_episodes, number)
        returns = [record["episode_return"] for record in records]
        return {
            "episode_return": float(np.mean(returns)),
            "episode_return_min": float(np.min(returns)),
            "episode_return_max": float(np.max(returns)),
            "episode_length": float(np.mean([record["episode_length"] for record in records])),
            "evaluation_episodes": num_episodes,
        }

    def episodes(self, num_episodes: int, number: int = 0) -> list[dict[str, float]]:
        """The episodes' own records."""
        if num_episodes < 1:
            raise ConfigError(f"Expected at least 1 episode, found {num_episodes}.")
        if hasattr(self._environment, "reseed"):
            self._environment.reseed(_seed(self._seed, number))
        key = jax.random.fold_in(jax.random.PRNGKey(self._seed), number)
        actor = PolicyActor(self._policy, key, VariableClient(self._store))
        return EnvironmentLoop(self._environment, actor).run(num_episodes=num_episodes)

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _seed(seed: int, number: int) -> int:
    """A seed that training does not use; 31 bits."""
    return int(np.random.SeedSequence([seed, 1, number]).generate_state(1)[0] >> 1)


def evaluate(
    run_directory: str | pathlib.Path, num_episodes: int = 20, video: str | pathlib.Path | None = None
) -> dict[str, Any]:
    """Evaluates a run's newest checkpoint.

    Args:
        run_directory: the folder `agentkit.run` wrote.
        num_episodes: at least 1.
        video: where to write a film of the first episode; None for none.

    Returns:
        ``steps``, ``updates`` and lists ``episode_return`` and ``episode_length``.

    Raises:
        ConfigError: not a run folder.
        CheckpointError: it has no readable checkpoint.
    """
    experiment = read_config(run_directory)
    if video is not None:
        experiment = _with_video(experiment, pathlib.Path(video))
    found = checkpoint.read_latest(pathlib.Path(run_directory) / "checkpoints")
    if found is None:
        raise CheckpointError(f"The run {run_directory} has no checkpoint yet. Train it for longer.")
    store = VariableStore()
    environment = experiment.make_environment(experiment.seed)
    networks = experiment.agent.make_networks(make_environment_spec(environment))
    environment.close()
    learner = Learner(
        experiment.agent.make_update(networks),
        iter(()),
        jax.random.PRNGKey(0),
        num_updates=experiment.agent.batch_plan.num_updates,
        outlets=LearnerOutlets(publisher=store),
    )
    learner.restore(found.state["learner"])
    with Evaluator(experiment, networks, store) as evaluator:
        records = evaluator.episodes(num_episodes, number=found.step)
    return {
        "steps": found.step,
        "updates": learner.num_updates_done,
        "episode_return": [record["episode_return"] for record in records],
        "episode_length": [int(record["episode_length"]) for record in records],
    }


def _with_video(experiment: ExperimentConfig, path: pathlib.Path) -> ExperimentConfig:
    name = str(experiment.environment)
    return dataclasses.replace(experiment, environment=lambda seed: envs.make(name, seed, video=path))
