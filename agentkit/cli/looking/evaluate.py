"""Runs ``agentkit evaluate``: plays episodes with a trained agent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentkit.cli.interrupts import interruptible
from agentkit.cli.screen import say
from agentkit.cli.values.environments import import_packages, parse_environment_settings, refusing_settings
from agentkit.cli.values.runs import check_is_run, describe_agents, describe_returns
from agentkit.counting import count_of
from agentkit.errors import CheckpointError, ConfigError


def evaluate(arguments: argparse.Namespace) -> int:
    """Plays the episodes and prints the mean, spread and range of their returns.

    Raises:
        ConfigError: if there is no run or checkpoint, the run cannot be rebuilt, or it cannot be filmed.
    """
    film = film_of(arguments, arguments.video)
    check_is_run(arguments.run)
    from agentkit import experiment

    imports = import_packages(arguments.imports)
    record = experiment.read_record(arguments.run)
    environment = record["environment"]
    if "policies" in record:
        return _evaluate_several(arguments, environment, imports, film)
    if arguments.opponent or arguments.tournament:
        raise of_several_agents("--opponent" if arguments.opponent else "--tournament")
    settings = parse_environment_settings(arguments.env_set, environment)
    limit = {} if arguments.max_steps is None else {"evaluation_max_steps": arguments.max_steps}
    try:
        play = experiment.evaluate  # Loads JAX.
        with refusing_settings(environment, settings), interruptible():
            result = play(
                arguments.run, arguments.episodes, film, checkpoint=arguments.checkpoint,
                environment_settings=settings, imports=imports, **limit,
            )  # fmt: skip
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    best = " (the best evaluation's)" if arguments.checkpoint == "best" else ""
    print(f"checkpoint of step {result['steps']:,}{best}")
    say(describe_returns(np.asarray(result["episode_return"], np.float64)))
    if result["episodes_cut"]:
        longest = max(result["episode_length"])
        say(f"Cut off after {longest:,} steps (--max-steps): {count_of(result['episodes_cut'], 'episode')}.")
    if film is not None:
        print(f"Wrote {film.path}")
    return 0


def of_several_agents(option: str) -> ConfigError:
    """Returns the error of an option that a run of one agent does not take."""
    return ConfigError(f"{option} is for runs of several agents. Leave it out.")


def opponents_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns who plays by another policy than the run's, as ``--opponent`` says: a `Frozen` or "random" by agent id.

    Raises:
        ConfigError: one is not of the form AGENT=RUN, or an agent has two.
    """
    from agentkit.experiment import Frozen

    opponents: dict[str, Frozen | str] = {}
    for text in arguments.opponent or ():
        agent_id, _, run = text.partition("=")
        run, colon, policy = run.partition(":")
        if not run or (run == "random" and colon):
            raise ConfigError(f"--opponent: expected AGENT=RUN, AGENT=RUN:POLICY or AGENT=random, found {text!r}.")
        if agent_id in opponents:
            raise ConfigError(f"--opponent {agent_id} is given twice; give it once.")
        opponents[agent_id] = "random" if run == "random" else Frozen(run, policy or None)
    return opponents


def _evaluate_several(arguments: argparse.Namespace, environment: str | None, imports: Sequence[str], film: Any) -> int:
    """Plays episodes of several agents; prints a line for each, with its mean return and its wins."""
    if arguments.tournament and film is not None:
        raise ConfigError("--video films one game, and --tournament plays many. Leave one of them out.")
    from agentkit import experiment

    changes: dict[str, Any] = {} if arguments.max_steps is None else {"evaluation_max_steps": arguments.max_steps}
    if settings := parse_environment_settings(arguments.env_set, environment):
        changes["environment_settings"] = settings
    opponents = opponents_of(arguments)
    try:
        if arguments.tournament:
            with interruptible():
                table = experiment.play_tournament(
                    arguments.run, arguments.episodes, checkpoint=arguments.checkpoint, others=opponents,
                    imports=imports, **changes,
                )  # fmt: skip
            say(str(table))
            return 0
        with interruptible():
            found = experiment.evaluate_multi_agent(
                arguments.run, arguments.episodes, film, checkpoint=arguments.checkpoint, opponents=opponents,
                imports=imports, **changes,
            )  # fmt: skip
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    print(f"checkpoint of step {found['steps']:,.0f}")
    for line in describe_agents(found, opponents):
        say(line)
    if found["episodes_cut"]:
        say(f"Cut off (--max-steps): {count_of(found['episodes_cut'], 'episode')}.")
    if film is not None:
        print(f"Wrote {film.path}")
    return 0


def film_of(arguments: argparse.Namespace, path: str | None) -> Any:
    """Returns the `Film` that ``--video-steps``, ``--fps`` and ``--size`` ask for; None without a path.

    Raises:
        ConfigError: for another suffix or an impossible number.
        MissingExtraError: the package that writes such files is not installed.
    """
    if path is None:
        if given := [name for name in ("video_steps", "fps", "size") if getattr(arguments, name) is not None]:
            raise ConfigError(f"--{given[0].replace('_', '-')} is of a film: give --video FILE.mp4 with it.")
        return None
    from agentkit.wrappers.film import Film

    names = {"video_steps": "num_steps", "fps": "frames_per_second", "size": "size"}
    settings = {
        field: getattr(arguments, name) for name, field in names.items() if getattr(arguments, name) is not None
    }
    total = settings.get("num_steps", Film.num_steps)
    return Film(path, on_frame=_counter(total) if sys.stderr.isatty() else None, **settings)


def _counter(total: int) -> Callable[[int], None]:
    """Returns a function that shows how many frames there are, on the same line."""

    def show(count: int) -> None:
        end = "\n" if count == total else ""
        print(f"\rframe {count:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return show
