"""Checks that a path is a run folder, and says in a line what its episodes returned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from agentkit.counting import count_of
from agentkit.errors import ConfigError


def describe_returns(returns: np.ndarray) -> str:
    """Returns one line about the returns ``[N]`` of N episodes.

    >>> describe_returns(np.array([1.0, 3.0]))
    'episode return: mean 2.00, standard deviation 1.00, minimum 1.00, maximum 3.00 (2 episodes)'
    """
    return (
        f"episode return: mean {returns.mean():.2f}, standard deviation {returns.std():.2f}, "
        f"minimum {returns.min():.2f}, maximum {returns.max():.2f} ({count_of(len(returns), 'episode')})"
    )


def describe_agents(record: Mapping[str, float], opponents: Collection[str] = ()) -> list[str]:
    """Returns a line about each agent of an evaluation's record, and one about all of them.

    >>> record = {"episode_return": 0.5, "episode_return_min": 0, "episode_return_max": 1, "evaluation_episodes": 2}
    >>> describe_agents(record | {"episode_return/red": 0.5, "wins/red": 0.5}, ["red"])[0]
    'red: mean return 0.50, wins 50% (opponent)'
    """
    lines = []
    for name, value in record.items():
        what, _, agent_id = name.partition("/")
        if what == "episode_return" and agent_id:
            wins = f", wins {record[f'wins/{agent_id}']:.0%}" if f"wins/{agent_id}" in record else ""
            lines.append(f"{agent_id}: mean return {value:.2f}{wins}{' (opponent)' if agent_id in opponents else ''}")
    lines.append(
        f"all: mean return {record['episode_return']:.2f}, minimum {record['episode_return_min']:.2f}, maximum "
        f"{record['episode_return_max']:.2f} ({count_of(record['evaluation_episodes'], 'episode')})"
    )
    return lines


def check_is_run(run: str) -> None:
    """Refuses a path that is not a run folder.

    Raises:
        ConfigError: saying what was found.
    """
    if not (Path(run) / "config.json").is_file():
        found = "it has no config.json" if Path(run).is_dir() else "there is no such folder"
        inside = [path for place in ("*", "learners/*") for path in sorted(Path(run).glob(f"{place}/config.json"))]
        advice = (
            f"Runs are in it, such as {inside[0].parent}." if inside else "'agentkit train' prints the one it makes."
        )
        if (Path(run) / "sweep.json").is_file():
            found, advice = "it is a sweep's", "The command that began it goes on with it: agentkit sweep FILE"
        raise ConfigError(f"{run!r} is not a run folder: {found}. {advice}")
