"""Evaluates: plays episodes with the policy to be judged by, in an environment of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.actors import BatchedPolicyActor, PolicyActor
from agentkit.core import VariableSource
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.acting import make_actor, make_loop
from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.experiment.step_watch import StepWatch
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import Nest
from agentkit.variables import VariableClient, VariableStore
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.canonical_actions import CanonicalActions
from agentkit.wrappers.film import Film, FilmedEnvironment, FilmWriter
from agentkit.wrappers.single_precision import SinglePrecision


class Evaluator:
    """Runs episodes with the evaluation policy and the newest parameters; a context manager.

    Evaluation number k of a run is a function of the seed, k and the parameters, and changes
    nothing in the training.
    """

    def __init__(
        self, experiment: ExperimentConfig, networks: Any, store: VariableSource, watch: StepWatch | None = None
    ):
        """Makes an environment of its own, of the experiment's kind; parameters come from `store`."""
        self._experiment = experiment
        self._watch = watch
        self._policy = experiment.agent.make_policy(networks, evaluation=True)
        self._store = store
        self._environment = self._make_environment(_seed(experiment.seed, 0))
        self._actor: PolicyActor | BatchedPolicyActor | None = None

    def run(self, num_episodes: int, number: int) -> dict[str, float]:
        """Returns the record of evaluation `number`: mean, least and greatest return, mean length."""
        return self._summary(self.episodes(num_episodes, number))

    def run_unless(self, should_stop: Callable[[], bool], num_episodes: int, number: int) -> dict[str, float] | None:
        """Runs as `run`, but asks `should_stop` before each step; returns None if it was to stop."""
        loop = self._loop(number)
        records: list[dict[str, float]] = []
        while len(records) < num_episodes:
            if should_stop():
                return None
            records += loop.run(num_steps=1)
        return self._summary(records[:num_episodes])

    def _summary(self, records: list[dict[str, float]]) -> dict[str, float]:
        returns = [record["episode_return"] for record in records]
        return {
            "episode_return": float(np.mean(returns)),
            "episode_return_min": float(np.min(returns)),
            "episode_return_max": float(np.max(returns)),
            "episode_length": float(np.mean([record["episode_length"] for record in records])),
            "evaluation_episodes": len(records),
        }

    def episodes(self, num_episodes: int, number: int = 0) -> list[dict[str, float]]:
        """Plays episodes and returns their own records."""
        if num_episodes < 1:
            raise ConfigError(f"Expected at least 1 episode, found {num_episodes}.")
        return self._loop(number).run(num_episodes=num_episodes)[:num_episodes]

    def steps(self, num_steps: int, number: int = 0) -> None:
        """Takes the first steps of evaluation `number`, and no more of it."""
        self._loop(number).run(num_steps=num_steps)

    def _loop(self, number: int) -> EnvironmentLoop | BatchedEnvironmentLoop:
        """Makes the loop of evaluation `number`, before its first episode."""
        self._begin(_seed(self._experiment.seed, number))
        key = jax.random.fold_in(jax.random.PRNGKey(self._experiment.seed), number)
        actor = make_actor(self._environment, self._policy, key, VariableClient(self._store))
        if self._actor is None:
            self._actor = actor
        else:  # A new one would compile the policy again.
            self._actor.restore(actor.save())
            self._actor.update(wait=True)
        return make_loop(self._environment, self._actor, on_nan=self._experiment.on_nan)

    def _begin(self, seed: int) -> None:
        """Makes the coming episodes depend on `seed` alone."""
        if hasattr(self._environment, "reseed"):
            self._environment.reseed(seed)
        else:
            environment = self._make_environment(seed)
            self._environment.close()
            self._environment = environment

    def _make_environment(self, seed: int) -> Any:
        environment = self._experiment.make_environment(seed)
        return environment if self._watch is None else self._watch.watched(environment)

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _seed(seed: int, number: int) -> int:
    """Returns a seed that training does not use; 31 bits."""
    return int(np.random.SeedSequence([seed, 1, number]).generate_state(1)[0] >> 1)


def evaluate(
    run_directory: str | pathlib.Path,
    num_episodes: int = 20,
    video: str | pathlib.Path | Film | None = None,
    *,
    environment_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a run's newest checkpoint.

    Args:
        run_directory: the folder `agentkit.run` wrote.
        num_episodes: at least 1.
        video: a file ``.mp4`` or ``.gif`` for a film of the first 300 steps, or a `Film` that says how many, how fast
            and how large; None for none.
        environment_settings: arguments of the environment beside the run's own, or instead of them.
        **options: see `read_config`: `imports`, or fields to replace, such as an `environment`.

    Returns:
        ``steps``, ``updates`` and lists ``episode_return`` and ``episode_length``.

    Raises:
        ConfigError: not a run folder, one that cannot be rebuilt, or a video of an environment that cannot render.
        CheckpointError: it has no readable checkpoint.
    """
    film = video if video is None or isinstance(video, Film) else Film(video)
    if num_episodes < 1:
        raise ConfigError(f"Expected at least 1 episode, found {num_episodes}.")
    restored = restore_policy(run_directory, **options)
    experiment, networks, store, found = restored.experiment, restored.networks, restored.store, restored.found
    settings = {**experiment.environment_settings, **(environment_settings or {})}
    experiment = dataclasses.replace(experiment, environment_settings=settings)
    with _filming(experiment, film) as shown, Evaluator(shown, networks, store) as evaluator:
        records = evaluator.episodes(num_episodes, number=found.step)
    return {
        "steps": found.step,
        "updates": int(found.state["learner"]["num_updates"]),
        "episode_return": [record["episode_return"] for record in records],
        "episode_length": [int(record["episode_length"]) for record in records],
    }


def show(
    run_directory: str | pathlib.Path,
    camera: Callable[[Callable[[], np.ndarray]], None],
    num_episodes: int = 1,
    size: int | None = None,
    *,
    environment_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[float]:
    """Plays a run's newest checkpoint in front of a camera, such as a window; returns the episodes' returns.

    Args:
        run_directory: the folder `agentkit.run` wrote.
        camera: called after each step with a function that draws, ``() -> uint8 [H, W, 3]``.
        num_episodes: at least 1.
        size: height of the images, where the environment can be asked for one.
        environment_settings: see `evaluate`.
        **options: see `evaluate`.
    """
    restored = restore_policy(run_directory, **options)
    settings = {**restored.experiment.environment_settings, **(environment_settings or {})}
    shown = filmed(dataclasses.replace(restored.experiment, environment_settings=settings), camera, size)
    with Evaluator(shown, restored.networks, restored.store) as evaluator:
        records = evaluator.episodes(num_episodes, number=restored.found.step)
    return [record["episode_return"] for record in records]


class RestoredPolicy(NamedTuple):
    """Holds all that is needed to act as a run's newest checkpoint does.

    Attributes:
        experiment: the run's.
        networks: its agent's.
        store: has the parameters.
        found: the checkpoint.
        environment_spec: what the networks were made for.
        own_actions: spec of the actions that the environment itself takes.
    """

    experiment: ExperimentConfig
    networks: Any
    store: VariableStore
    found: checkpoint.Checkpoint
    environment_spec: EnvironmentSpec
    own_actions: Nest


def restore_policy(run_directory: str | pathlib.Path, **options: Any) -> RestoredPolicy:
    """Returns the networks and parameters of a run's newest checkpoint.

    Args:
        run_directory: the run folder.
        **options: see `read_config`.

    Raises:
        ConfigError: not a run folder, or one that cannot be rebuilt.
        CheckpointError: it has no readable checkpoint.
    """
    experiment = read_config(run_directory, **options)
    found = checkpoint.read_latest(pathlib.Path(run_directory) / "checkpoints")
    if found is None:
        raise CheckpointError(f"The run {run_directory} has no checkpoint yet. Train it for longer.")
    store = VariableStore()
    with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
        spec, actions = make_environment_spec(environment), own_actions(environment)
    networks = experiment.agent.make_networks(spec)
    learner = Learner(
        experiment.agent.make_update(networks),
        iter(()),
        jax.random.PRNGKey(0),
        num_updates=experiment.agent.batch_plan.num_updates,
        callbacks=LearnerCallbacks(publisher=store),
    )
    learner.restore(found.state["learner"])
    return RestoredPolicy(experiment, networks, store, found, spec, actions)


def own_actions(environment: Any) -> Nest:
    """Returns the spec of the actions that the environment itself takes, below what makes it ready for an agent."""
    layer = environment
    while isinstance(layer, EnvironmentWrapper | ResumableEnvironment):
        inner = layer.environment
        if isinstance(layer, CanonicalActions):
            return inner.action_spec()
        if layer.action_spec() != inner.action_spec() and not isinstance(layer, SinglePrecision):
            break  # A wrapper of the user's own: its actions are meant.
        layer = inner
    return environment.action_spec()


def filmed(
    experiment: ExperimentConfig, camera: Callable[[Callable[[], np.ndarray]], None], size: int | None
) -> ExperimentConfig:
    """Returns the experiment with an environment that shows every step to a camera; see `FilmedEnvironment`.

    Args:
        experiment: whose environment is to be seen.
        camera: takes the images that it wants.
        size: their height, where the environment can be asked for one; None for its own.
    """
    by_name, settings = str(experiment.environment), dict(experiment.environment_settings)
    if by_name.startswith("gymnasium:"):
        from agentkit.envs.gymnasium import film_settings  # Loads gymnasium: the environment will, too.

        settings = film_settings(by_name.removeprefix("gymnasium:"), size) | settings | {"render_mode": "rgb_array"}
    wrappers = (*experiment.wrappers, lambda environment: FilmedEnvironment(environment, camera))
    return dataclasses.replace(experiment, environment_settings=settings, wrappers=wrappers)


@contextlib.contextmanager
def _filming(experiment: ExperimentConfig, film: Film | None) -> Iterator[ExperimentConfig]:
    """Yields the experiment with an environment whose first steps are a film in the end."""
    if film is None:
        yield experiment
        return
    writer, folder = FilmWriter(film), pathlib.Path(film.path).parent
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield filmed(experiment, writer.take, film.size)
        writer.close()
    except BaseException:
        writer.abandon()
        with contextlib.suppress(OSError):  # Somebody else has put something there.
            for path in made:
                path.rmdir()
        raise
