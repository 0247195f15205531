"""Films the policy while it trains: an episode or more every so many steps, in an environment of its own.

The training's own environment does not draw, so that it has the same bits and speed with films and without.
"""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from agentkit.core import VariableSource
from agentkit.environment_loop import Observer
from agentkit.errors import ConfigError
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.evaluate import Evaluator, filmed
from agentkit.wrappers.film import Film, FilmWriter, draw


@final
class TrainingFilms:
    """Writes ``videos/step-N.mp4`` into a run folder; changes nothing in the training. A context manager.

    Film N is a function of the seed, N and the parameters, as an evaluation is.
    """

    def __init__(self, experiment: ExperimentConfig, networks: Any, store: VariableSource, watch: StepWatch):
        """Makes an environment that draws; parameters come from `store`."""
        self._folder = _folder(experiment)
        self._writer: FilmWriter | None = None
        drawing = filmed(experiment, self._take, _settings(self._folder, 0).size)
        self._evaluator = Evaluator(drawing, networks, store, watch)

    def film(self, step: int) -> None:
        """Writes the film of a step; where the disk refuses, warns."""
        film = _settings(self._folder, step)
        self._writer = FilmWriter(film)
        try:
            self._folder.mkdir(exist_ok=True)
            self._evaluator.steps(film.num_steps, number=step)
            self._writer.close()
        except OSError as error:
            self._writer.abandon()
            warnings.warn(f"Could not write {film.path}: {error}. Training goes on.", RuntimeWarning, stacklevel=2)

    def _take(self, render: Callable[[], np.ndarray]) -> None:
        if self._writer is not None:
            self._writer.take(render)

    def close(self) -> None:
        """Closes the environment."""
        self._evaluator.close()

    def __enter__(self) -> TrainingFilms:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def check_films(experiment: ExperimentConfig) -> None:
    """Draws one image, so that what cannot be filmed is refused before anything is written.

    Raises:
        ConfigError: there is no run folder, or the environment cannot draw.
        MissingExtraError: the package that writes films is not installed.
    """
    if not experiment.video_period:
        return
    film = _settings(_folder(experiment), 0)
    images: list[np.ndarray] = []
    drawing = filmed(experiment, lambda render: images.append(draw(render)), film.size)
    with contextlib.closing(drawing.make_environment(experiment.seed, evaluation=True)) as environment:
        environment.reset()


def _folder(experiment: ExperimentConfig) -> pathlib.Path:
    if experiment.run_directory is None:
        raise ConfigError("video_period: films go into the run folder; give the experiment a run_directory.")
    return pathlib.Path(experiment.run_directory) / "videos"


def _settings(folder: pathlib.Path, step: int) -> Film:
    return Film(folder / f"step-{step}.mp4")


def open_evaluations(
    experiment: ExperimentConfig,
    networks: Any,
    store: VariableSource,
    watch: StepWatch,
    observers: Sequence[Observer],
    stack: contextlib.ExitStack,
) -> tuple[Evaluator | None, TrainingFilms | None]:
    """Returns what evaluates and films a training as its experiment says; None for either that it does not ask for.

    Args:
        experiment: says what is wanted.
        networks: of its agent.
        store: where parameters come from.
        watch: ends what hangs.
        observers: of the evaluations' episodes.
        stack: closes the two.
    """
    evaluator = None
    if evaluation_plan(experiment).period:
        evaluator = stack.enter_context(Evaluator(experiment, networks, store, watch, observers))
    return evaluator, open_films(experiment, networks, store, watch, stack)


def open_films(
    experiment: ExperimentConfig, networks: Any, store: VariableSource, watch: StepWatch, stack: contextlib.ExitStack
) -> TrainingFilms | None:
    """Returns what films a training, or None where its experiment asks for none; see `open_evaluations`."""
    if not experiment.video_period:
        return None
    return stack.enter_context(TrainingFilms(experiment, networks, store, watch))
