"""Checks that a path is a run folder, and says in a line what its episodes returned."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentkit.errors import ConfigError


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
        inside = sorted(Path(run).glob("*/config.json"))
        advice = (
            f"Runs are in it, such as {inside[0].parent}." if inside else "'agentkit train' prints the one it makes."
        )
        raise ConfigError(f"{run!r} is not a run folder: {found}. {advice}")
