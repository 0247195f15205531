"""Runs ``agentkit train --seeds``: a run of the same experiment for each seed, and the resume of such a group."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import Any

from agentkit.cli.interrupts import INTERRUPTED
from agentkit.cli.screen import command_line, say
from agentkit.cli.training.new_run import changes_of_resumed, in_new_folder, new_experiment, show_evaluation
from agentkit.cli.values.callbacks import changed_callbacks
from agentkit.counting import count_of
from agentkit.errors import ConfigError

_RANGE = re.compile(r"(\d+):(\d+)")


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds that ``0:5`` (five of them) or ``0,3,7`` name.

    Raises:
        ConfigError: it is neither.

    >>> parse_seeds("0:5"), parse_seeds("0,3,7"), parse_seeds("4")
    ([0, 1, 2, 3, 4], [0, 3, 7], [4])
    """
    from agentkit.experiment.sweeps.seeds import check_seeds

    found = _RANGE.fullmatch(text.strip())
    try:
        if found is not None:
            return check_seeds(range(int(found[1]), int(found[2])))
        return check_seeds([_seed(part) for part in text.split(",")])
    except ValueError as error:
        raise ConfigError(f"--seeds: expected FIRST:END or different seeds such as 0,3,7, found {text!r}.") from error


def _seed(text: str) -> int:
    if not re.fullmatch(r"\s*\d+\s*", text):
        raise ValueError(text)
    return int(text)


def train_seeds(arguments: argparse.Namespace) -> int:
    """Trains with each seed, says how each ended, and how to go on.

    Returns:
        0; 130 if Ctrl-C stopped and saved them; 1 if one has failed.

    Raises:
        ConfigError: for missing or contradicting arguments.
    """
    for name in ("profile", "jax_trace"):
        if getattr(arguments, name):
            raise ConfigError(f"--{name.replace('_', '-')} is of one run; leave out --seeds.")
    seeds = take_seeds(arguments)
    replay = "in_process" if arguments.replay is None else arguments.replay
    return start_group(new_experiment(arguments, "train", replay=replay, progress=True), seeds, arguments)


def take_seeds(arguments: argparse.Namespace) -> list[int]:
    """Returns the seeds of ``--seeds``, the first of which becomes that of ``--seed``.

    Raises:
        ConfigError: both are given.
    """
    if arguments.seed is not None:
        raise ConfigError("--seed and --seeds are both given; give one of them.")
    seeds = parse_seeds(arguments.seeds)
    arguments.seed = seeds[0]
    return seeds


def start_group(plan: Any, seeds: Sequence[int], arguments: argparse.Namespace) -> int:
    """Runs an experiment with each seed in a new group folder; returns as `train_seeds` does."""
    for seed in seeds:
        dataclasses.replace(plan, seed=seed)  # Refuses a seed that is too large, before there is a folder.
    plan, folder = in_new_folder(plan, arguments, f"seeds{_short(seeds)}")
    show_evaluation(plan)
    with folder.removed_if_refused():
        return _run(plan, seeds, 1 if arguments.jobs is None else arguments.jobs, arguments.imports)


def resume_seeds(arguments: argparse.Namespace) -> int:
    """Goes on with the runs of a group that have not finished; returns as `train_seeds` does.

    Raises:
        ConfigError: settings were given that are the group's own.
    """
    from agentkit.experiment.sweeps.seeds import read_group

    for name in ("profile", "jax_trace"):
        if getattr(arguments, name):
            raise ConfigError(f"--{name.replace('_', '-')} is of one run; give one of the group's run folders.")
    changes = changes_of_resumed(arguments, is_group=True)
    plan, seeds, jobs = read_group(arguments.resume, progress=True, **changes)
    plan = dataclasses.replace(plan, callbacks=changed_callbacks(plan.callbacks, arguments))
    return _run(plan, seeds, arguments.jobs or jobs, arguments.imports, resume=True)


def _run(plan: Any, seeds: Sequence[int], jobs: int, imports: Sequence[str] | None, resume: bool = False) -> int:
    from agentkit.experiment.sweeps.seeds import all_finished, run_seeds

    results = run_seeds(plan, seeds, jobs, resume=resume, check=False)
    folder = plan.run_directory
    if all_finished(results):
        say(f"Saved {folder}, {count_of(len(results), 'run')}. Next:\n  {command_line('plot', folder)}/seed*")
        return 0
    go_on = f"\n  {command_line('train', '--resume', folder, imports=imports)}"
    failed = [result for result in results if result.state == "failed"]
    for result in failed:
        say(f"agentkit: seed {result.seed} failed: {result.error}", sys.stderr)
    if any(result.state in ("stopped", "waiting") for result in results):
        finished = sum(result.state == "finished" for result in results)
        say(f"Stopped and saved; {finished} of {count_of(len(results), 'run')} finished. Go on with:{go_on}")
        return INTERRUPTED
    say(f"{len(failed)} of {count_of(len(results), 'run')} failed. Mend it, and go on with:{go_on}")
    return 1


def _short(seeds: Sequence[int]) -> str:
    """Returns seeds as part of a folder's name."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    text = "_".join(map(str, seeds))
    return text if len(text) <= 60 else f"{text[:60]}_and_more"
