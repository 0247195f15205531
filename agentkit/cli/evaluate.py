"""Runs ``agentkit evaluate``: plays episodes with a trained agent."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from agentkit.cli.environments import import_packages, parse_environment_settings, refuse_settings
from agentkit.errors import CheckpointError, ConfigError


def evaluate(arguments: argparse.Namespace) -> int:
    """Plays the episodes and prints the mean, spread and range of their returns.

    Raises:
        ConfigError: if there is no run or checkpoint, the run cannot be rebuilt, or the video would be no GIF.
    """
    if arguments.video is not None and not arguments.video.endswith(".gif"):
        raise ConfigError(f"--video: expected a file that ends in .gif, found {arguments.video!r}.")
    check_is_run(arguments.run)
    from agentkit import experiment

    imports = import_packages(arguments.imports)
    environment = experiment.read_record(arguments.run)["environment"]
    settings = parse_environment_settings(arguments.env_set, environment)
    try:
        result = experiment.evaluate(
            arguments.run, arguments.episodes, arguments.video, checkpoint=arguments.checkpoint,
            environment_settings=settings, imports=imports,
        )  # fmt: skip
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    except TypeError as error:
        if not settings:
            raise
        raise refuse_settings(error, environment, list(settings)) from error
    best = " (the best evaluation's)" if arguments.checkpoint == "best" else ""
    print(f"checkpoint of step {result['steps']:,}{best}")
    print(describe_returns(np.asarray(result["episode_return"], np.float64)))
    if arguments.video is not None:
        print(f"Wrote {arguments.video}")
    return 0


def describe_returns(returns: np.ndarray) -> str:
    """Returns one line about the returns ``[N]`` of N episodes.

    >>> describe_returns(np.array([1.0, 3.0]))
    'episode return: mean 2.00, standard deviation 1.00, minimum 1.00, maximum 3.00 (2 episodes)'
    """
    return (
        f"episode return: mean {returns.mean():.2f}, standard deviation {returns.std():.2f}, "
        f"minimum {returns.min():.2f}, maximum {returns.max():.2f} ({len(returns)} episodes)"
    )


def check_is_run(run: str) -> None:
    """Refuses a path that is not a run folder.

    Raises:
        ConfigError: saying what was found.
    """
    if not (Path(run) / "config.json").is_file():
        found = "it has no config.json" if Path(run).is_dir() else "there is no such folder"
        raise ConfigError(f"{run!r} is not a run folder: {found}. 'agentkit train' prints the folder that it makes.")
