"""Runs ``agentkit watch``: shows a trained agent in a window, or in a film where there is no display."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from agentkit.cli.interrupts import interruptible
from agentkit.cli.looking.evaluate import film_of, of_several_agents, opponents_of
from agentkit.cli.screen import say
from agentkit.cli.values.environments import import_packages, parse_environment_settings, refusing_settings
from agentkit.cli.values.runs import check_is_run, describe_agents, describe_returns
from agentkit.errors import CheckpointError, ConfigError, MissingExtraError


def watch(arguments: argparse.Namespace) -> int:
    """Plays episodes for somebody to look at, and prints their returns.

    Raises:
        ConfigError: if there is no run or checkpoint, or its environment cannot draw.
    """
    check_is_run(arguments.run)
    from agentkit import experiment
    from agentkit.envs.rendering import has_display

    imports = import_packages(arguments.imports)
    record = experiment.read_record(arguments.run)
    environment, play = record["environment"], _play_several if "policies" in record else _play
    if arguments.opponent and play is _play:
        raise of_several_agents("--opponent")
    settings = parse_environment_settings(arguments.env_set, environment)
    film = _film(arguments)
    in_window = arguments.out is None and has_display() and Window.possible()
    window = Window(film.frames_per_second, str(environment)) if in_window else None
    try:
        with refusing_settings(environment, settings):
            lines = play(
                arguments, film, window, checkpoint=arguments.checkpoint, environment_settings=settings, imports=imports
            )
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    for line in lines:
        say(line)
    if window is None:
        say(f"{'There is no display to open a window on: wrote' if arguments.out is None else 'Wrote'} {film.path}")
    return 0


def _film(arguments: argparse.Namespace) -> Any:
    """Returns the film that there is to be without a display: --out, or .mp4, or .gif where nothing writes that."""
    if arguments.out is not None:
        return film_of(arguments, arguments.out)
    try:
        return film_of(arguments, str(Path(arguments.run) / "watch.mp4"))
    except MissingExtraError:
        return film_of(arguments, str(Path(arguments.run) / "watch.gif"))


def _play(arguments: argparse.Namespace, film: Any, window: Window | None, **options: Any) -> Sequence[str]:
    """Plays one agent; returns a line about its returns, and none where the window was closed."""
    from agentkit.experiment.evaluation.evaluate import evaluate, show

    with interruptible():
        if window is None:
            returns = evaluate(arguments.run, arguments.episodes, film, **options)["episode_return"]
        else:
            try:
                returns = show(arguments.run, window.take, arguments.episodes, film.size, **options)
            except ClosedError:
                return ()
    return [describe_returns(np.asarray(returns, np.float64))]


def _play_several(arguments: argparse.Namespace, film: Any, window: Window | None, **options: Any) -> Sequence[str]:
    """Plays several agents; returns lines about them, and none where the window was closed."""
    from agentkit.experiment.multi_agent.judging.evaluation import evaluate_multi_agent, show_multi_agent

    opponents = opponents_of(arguments)
    with interruptible():
        if window is None:
            record = evaluate_multi_agent(arguments.run, arguments.episodes, film, opponents=opponents, **options)
        else:
            try:
                record = show_multi_agent(
                    arguments.run, window.take, arguments.episodes, opponents=opponents, **options
                )
            except ClosedError:
                return ()
    return describe_agents(record, opponents)


class ClosedError(Exception):
    """Says that the window was closed."""


@final
class Window:
    """Shows images in a window, so many a second."""

    def __init__(self, frames_per_second: float, title: str):
        """Makes a `Window`; it opens with the first image."""
        self._seconds = 1.0 / frames_per_second
        self._title = title
        self._figure: Any = None
        self._image: Any = None
        self._next = 0.0

    @staticmethod
    def possible() -> bool:
        """Returns whether matplotlib can open windows here: it needs Tk, Qt or the like."""
        import matplotlib
        from matplotlib import pyplot

        pyplot.close(pyplot.figure())  # Decides on a backend.
        return matplotlib.get_backend().lower() not in ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")

    def take(self, render: Callable[[], np.ndarray]) -> None:
        """Shows an image, when its time has come.

        Raises:
            ClosedError: somebody has closed the window.
            ConfigError: what is drawn is no image.
        """
        from matplotlib import pyplot

        from agentkit.wrappers.film import draw

        frame = draw(render)
        if self._figure is None:
            self._figure = pyplot.figure(self._title, figsize=(frame.shape[1] / 60, frame.shape[0] / 60))
            axes = self._figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            self._image = axes.imshow(frame)
        if not pyplot.fignum_exists(self._figure.number):
            raise ClosedError
        self._image.set_data(frame)
        pyplot.pause(max(self._next - time.monotonic(), 0.001))
        self._next = time.monotonic() + self._seconds
