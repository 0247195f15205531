"""Evaluates: plays episodes with the policy to be judged by, in an environment of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agentkit.actors import ActorIndex
from agentkit.actors.policy import ALONE
from agentkit.core import VariableSource
from agentkit.environment_loop import Observer
from agentkit.envs.prefixes import GYMNASIUM_PREFIXES, is_of_pettingzoo
from agentkit.envs.rendering import prepare_pygame
from agentkit.errors import says_what_was_meant
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.judging import check_num_episodes, check_options, find_judged
from agentkit.experiment.policies.agent_parts import find_policy
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.make_actor import AnyActor, AnyLoop, make_actor, make_loop
from agentkit.experiment.policies.own_actor import OwnActor
from agentkit.experiment.policies.restore_policy import check_fits, restore_policy, steps_explored
from agentkit.experiment.policies.result import Result
from agentkit.files import refusing_unwritable
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.variables import VariableClient
from agentkit.wrappers.film import Camera, Film, FilmedEnvironment, FilmWriter


class Evaluator:
    """Runs episodes with the policy to be judged by and the newest parameters; a context manager.

    Where `experiment.evaluation_samples` says so, that is the policy that explores.

    Evaluation number k of a run is a function of the seed, k and the parameters, and changes
    nothing in the training.

    Attributes:
        num_cut: episodes of the newest evaluation that the experiment's limit of steps has cut off.
    """

    def __init__(
        self, experiment: ExperimentConfig, networks: Any, store: VariableSource, watch: StepWatch | None = None,
        observers: Sequence[Observer] = (),
    ):  # fmt: skip
        """Makes an environment of its own, of the experiment's kind.

        Args:
            experiment: says in what to evaluate which agent.
            networks: the agent's.
            store: where parameters come from.
            watch: ends what hangs; None waits for ever.
            observers: of the episodes. Numbers that they add to records are in the evaluation's record as means.
        """
        self._experiment = experiment
        self._watch = watch
        self._observers = observers
        self._policy = find_policy(experiment.agent, networks, evaluation=not experiment.evaluation_samples)
        # All of an evaluation is played with the parameters that it begins with.
        self.client = VariableClient(store, update_seconds=math.inf)
        self._environment = self._make_environment(seed_of_evaluation(experiment.seed, 0))
        self._actor: AnyActor | None = None
        self._max_episode_steps = evaluation_plan(experiment).max_steps
        self.num_cut = 0

    def check_fits(self, spec: EnvironmentSpec) -> None:
        """Refuses, with a `SpecError`, an environment that differs from what the networks were made for."""
        check_fits(make_environment_spec(self._environment), spec.observations, spec.actions)

    def run(
        self,
        num_episodes: int,
        number: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Returns the record of evaluation `number`: mean, least and greatest return, mean length.

        Args:
            num_episodes: at least 1.
            number: of this evaluation; its episodes depend on it.
            should_stop: asked before each step; the record is None where it was to stop.
        """
        loop = self._loop(number, number)
        records: list[dict[str, float]] = []
        while len(records) < num_episodes:
            if should_stop():
                return None
            records += loop.run(num_steps=1)
        self.num_cut = loop.num_cut
        return self._summary(records[:num_episodes])

    def _summary(self, records: list[dict[str, float]]) -> dict[str, float]:
        summary = summarise(records)
        added = dict.fromkeys(name for record in records for name in record if name not in _OF_THE_LOOP)
        for name in added if self._observers else ():
            summary[name] = float(np.mean([record[name] for record in records if name in record]))
        return summary

    def episodes(self, num_episodes: int, steps: int = 0) -> list[dict[str, float]]:
        """Plays episodes and returns their own records.

        They are those of evaluation 0, which no training plays: by others than by which a policy was found to be the
        best, and by the same ones for all checkpoints.

        Args:
            num_episodes: at least 1.
            steps: at which schedules of a policy that explores go on.
        """
        check_num_episodes(num_episodes)
        loop = self._loop(0, steps)
        records = loop.run(num_episodes=num_episodes)[:num_episodes]
        self.num_cut = loop.num_cut
        return records

    def steps(self, num_steps: int, number: int = 0) -> None:
        """Takes the first steps of evaluation `number`, and no more of it."""
        self._loop(number, number).run(num_steps=num_steps)

    def _loop(self, number: int, steps: int) -> AnyLoop:
        """Makes the loop of evaluation `number` of a policy of so many steps, before its first episode."""
        self._begin(seed_of_evaluation(self._experiment.seed, number))
        key = key_of_evaluation(self._experiment.seed, number)
        index = ActorIndex(num_steps=steps) if self._experiment.evaluation_samples else ALONE  # For schedules.
        actor = make_actor(self._environment, self._policy, key, self.client, actor_index=index)
        if self._actor is None or isinstance(actor, OwnActor):
            self._close_actor()
            self._actor = actor
        else:  # A new one would compile the policy again.
            self._actor.restore(actor.save())
        self._actor.update(wait=True)
        return make_loop(
            self._environment,
            self._actor,
            on_nan=self._experiment.on_nan,
            observers=self._observers,
            max_episode_steps=self._max_episode_steps,
        )

    def _begin(self, seed: int) -> None:
        """Makes the coming episodes depend on `seed` alone."""
        if hasattr(self._environment, "reseed"):
            self._environment.reseed(seed)
        else:
            environment = self._make_environment(seed)
            self._environment.close()
            self._environment = environment

    def _make_environment(self, seed: int) -> Any:
        if self._watch is None:
            return self._experiment.make_environment(seed, evaluation=True)
        return self._watch.make(lambda: self._experiment.make_environment(seed, evaluation=True))

    def close(self) -> None:
        """Closes the environment, and an actor of the user's own."""
        self._close_actor()
        self._environment.close()

    def _close_actor(self) -> None:
        if isinstance(self._actor, OwnActor):
            self._actor.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


_OF_THE_LOOP = ("steps", "episodes", "episode_return", "episode_length", "steps_per_second")


def summarise(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean, the least and the greatest return of episodes, their mean length, and how many there are.

    Where wrappers change rewards in evaluations, too, the mean of the environment's own is ``episode_raw_return``.
    """
    returns = [record["episode_return"] for record in records]
    raw_returns = [record["episode_raw_return"] for record in records if "episode_raw_return" in record]
    return {
        "episode_return": float(np.mean(returns)),
        "episode_return_min": float(np.min(returns)),
        "episode_return_max": float(np.max(returns)),
        "episode_length": float(np.mean([record["episode_length"] for record in records])),
        "evaluation_episodes": len(records),
        **({"episode_raw_return": float(np.mean(raw_returns))} if len(raw_returns) == len(records) else {}),
    }


def seed_of_evaluation(seed: int, number: int) -> int:
    """Returns a seed that training does not use; 31 bits."""
    return _words_of_evaluation(seed, number)[0]


def key_of_evaluation(seed: int, number: int) -> jax.Array:
    """Returns the PRNG key ``uint32[2]`` of an evaluation's actors: none of training's, nor of its environment's."""
    return jax.random.PRNGKey(_words_of_evaluation(seed, number)[1])


def _words_of_evaluation(seed: int, number: int) -> list[int]:
    return (np.random.SeedSequence([seed, 1, number]).generate_state(2) >> 1).tolist()


@says_what_was_meant
def evaluate(
    run: str | pathlib.Path | ExperimentConfig | Result | LoadedPolicy,
    num_episodes: int = 20,
    video: str | pathlib.Path | Film | None = None,
    *,
    checkpoint: str | int = "newest",
    environment_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a run's newest checkpoint or another one, the result of a training, or a policy.

    The episodes begin alike for all checkpoints of a run, and are others than those of its own evaluations: the best of
    these would be judged by the episodes by which it was chosen.

    Args:
        run: the folder that `agentkit.run` wrote; or the experiment that it ran, whose own code no folder can name; or
            what `train` or `run` returned; or a policy of `load`, which plays as it was loaded, or its file. A file's
            policy needs an `environment`.
        num_episodes: at least 1.
        video: a file ``.mp4`` or ``.gif`` for a film of the first 300 steps, or a `Film` that says how many, how fast
            and how large; None for none.
        checkpoint: "newest", "best" (see `callbacks.keep_best`), or a step that has one.
        environment_settings: arguments of the environment beside the run's own, or instead of them.
        **options: see `read_config`: `imports`, or fields to replace that an evaluation depends on: `agent`,
            `environment`, `evaluation_max_steps`, `evaluation_samples`, `on_nan`, `seed` and `wrappers`; and
            `num_envs`, `ready`, `replay` and `workers`, where the run's own do not go with these.

    Returns:
        ``steps`` and ``updates`` (None where a policy's file does not say), lists ``episode_return`` and
        ``episode_length``, and ``episodes_cut``, how many of them `evaluation_max_steps` has cut off.

    Raises:
        ConfigError: not a run folder, one that cannot be rebuilt, no such checkpoint, or a video of an environment that
            cannot render, or that cannot be written.
        CheckpointError: it has no readable checkpoint, or another environment was given that it does not fit.
        SpecError: with these settings the environment has other observations or actions.
        UnknownNameError: an argument that there is not.
    """
    check_options(options)
    film = video if video is None or isinstance(video, Film) else Film(video)
    check_num_episodes(num_episodes)
    judged = find_judged(run, checkpoint, **options)
    experiment = judged.experiment
    settings = {**experiment.environment_settings, **(environment_settings or {})}
    experiment = dataclasses.replace(experiment, environment_settings=settings)
    with film_camera(film) as camera:
        if film is not None and camera is not None:
            experiment = filmed(experiment, camera, film.size)
        with Evaluator(experiment, judged.networks, judged.store) as evaluator:
            evaluator.check_fits(judged.environment_spec)
            records = evaluator.episodes(num_episodes, judged.explored)
            num_cut = evaluator.num_cut
    return {
        "steps": judged.steps,
        "updates": judged.updates,
        "episode_return": [record["episode_return"] for record in records],
        "episode_length": [int(record["episode_length"]) for record in records],
        "episodes_cut": num_cut,
    }


def show(
    run_directory: str | pathlib.Path,
    camera: Camera,
    num_episodes: int = 1,
    size: int | None = None,
    *,
    checkpoint: str | int = "newest",
    environment_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[float]:
    """Plays a run's checkpoint in front of a camera, such as a window; returns the episodes' returns.

    Args:
        run_directory: the folder `agentkit.run` wrote.
        camera: called after each step with a function that draws, ``() -> uint8 [H, W, 3]``.
        num_episodes: at least 1.
        size: height of the images, where the environment can be asked for one.
        checkpoint: see `evaluate`.
        environment_settings: see `evaluate`.
        **options: see `evaluate`.
    """
    check_options(options)
    check_num_episodes(num_episodes)
    restored = restore_policy(run_directory, checkpoint, **options)
    settings = {**restored.experiment.environment_settings, **(environment_settings or {})}
    shown = filmed(dataclasses.replace(restored.experiment, environment_settings=settings), camera, size)
    found = restored.found
    assert found is not None, "it was read"
    with Evaluator(shown, restored.networks, restored.store) as evaluator:
        evaluator.check_fits(restored.environment_spec)
        records = evaluator.episodes(num_episodes, steps_explored(found.state, found.step))
    return [record["episode_return"] for record in records]


def filmed(experiment: ExperimentConfig, camera: Camera, size: int | None) -> ExperimentConfig:
    """Returns the experiment with an environment that shows every step to a camera; see `FilmedEnvironment`.

    Args:
        experiment: whose environment is to be seen.
        camera: takes the images that it wants.
        size: their height, where the environment can be asked for one; None for its own.
    """
    by_name, settings = str(experiment.environment), dict(experiment.environment_settings)
    prefix, _, name = by_name.partition(":")
    if prefix in GYMNASIUM_PREFIXES:
        from agentkit.envs.gymnasium_loading import film_settings  # Loads gymnasium: the environment will, too.

        settings = film_settings(name, size) | settings | {"render_mode": "rgb_array"}
    if is_of_pettingzoo(by_name):
        prepare_pygame()
        settings["render_mode"] = "rgb_array"
    wrappers = (*experiment.wrappers, lambda environment: FilmedEnvironment(environment, camera))
    return dataclasses.replace(experiment, environment_settings=settings, wrappers=wrappers)


@contextlib.contextmanager
def film_camera(film: Film | None) -> Iterator[Camera | None]:
    """Yields a camera whose first images are a film in the end, and after an error none; None where none is wanted.

    Raises:
        ConfigError: the film cannot be written.
    """
    if film is None:
        yield None
        return
    writer, folder = FilmWriter(film), pathlib.Path(film.path).parent
    with refusing_unwritable(film.path):
        made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with refusing_unwritable(film.path):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # What writes the film would say so once all was played.
        yield writer.take
        with refusing_unwritable(film.path):
            writer.close()
    except BaseException:
        with contextlib.suppress(OSError):  # The folder is none.
            writer.abandon()
        for path in made:
            with contextlib.suppress(OSError):  # It was not made, or somebody else has put something there.
                path.rmdir()
        raise
