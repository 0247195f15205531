"""Runs ``agentkit status``, ``scale`` and ``stop``: looks at, and speaks to, a program that runs elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentkit.cli.interrupts import interruptible
from agentkit.cli.screen import command_line, say
from agentkit.counting import count_of
from agentkit.errors import ConfigError

_BETWEEN_SECONDS = 1.0  # Speeds need two looks.
_WATCH_SECONDS = 0.5
_SCALE_SECONDS = 40.0  # An actor that is to stop may take half of it.


def status(arguments: argparse.Namespace) -> int:
    """Prints a program's state, once or until the program ends.

    Raises:
        ConfigError: if nothing runs there.
    """
    from agentkit.loggers.program_table import Speeds, as_text

    with connected(arguments.run) as board:
        if arguments.watch:
            return _watch(board)
        speeds = Speeds()
        speeds.add(board.status(), time.monotonic())
        time.sleep(_BETWEEN_SECONDS)
        newest = board.status()
        speeds.add(newest, time.monotonic())
        print(as_text(newest, speeds))
    return 0


def scale(arguments: argparse.Namespace) -> int:
    """Changes the number of a program's actors, and waits until they are there.

    Raises:
        ConfigError: if nothing runs there, its actors are started by others, or the number did not change in time.
    """
    with connected(arguments.run) as board:
        if board.status()["values"].get("by_hand"):
            raise ConfigError(
                f"{arguments.run} is hosted by 'agentkit node replay': its actors are started and stopped where they "
                "were started (the scheduler, the shell loop), each with 'agentkit node actor'."
            )
        board.command("scale", role="actor", count=arguments.actors)
        deadline = time.monotonic() + _SCALE_SECONDS
        while (found := _num_actors(board.status())) != arguments.actors:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{arguments.run} was asked for {count_of(arguments.actors, 'actor')} and has {found} after "
                    f"{_SCALE_SECONDS:g} s. See: {command_line('status', arguments.run)}"
                )
            time.sleep(0.2)
    print(f"{arguments.run} has {count_of(found, 'actor')}.")
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Asks a program to save and stop; it does so a little later.

    Raises:
        ConfigError: if nothing runs there.
    """
    with connected(arguments.run) as board:
        board.command("stop", reason="asked by 'agentkit stop'")
    go_on = command_line("launch", "--resume", arguments.run)
    say(f"Asked {arguments.run} to save and stop. Go on later with:\n  {go_on}")
    return 0


@contextlib.contextmanager
def connected(run: str) -> Iterator[Any]:
    """Yields a `RunStoreClient` of the program that runs in a folder.

    Raises:
        ConfigError: if nothing runs there, or it stops to answer.
    """
    from agentkit.distributed import RunStoreError, connect_to_run

    advice = f"If it was killed, go on with: {command_line('launch', '--resume', run)}"
    try:
        board = connect_to_run(Path(run))
    except (RunStoreError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise  # It says itself what is wrong.
        raise ConfigError(f"Nothing answers for {run}: {error} {advice}") from error
    with contextlib.closing(board):
        try:
            yield board
        except RunStoreError as error:
            raise ConfigError(f"{run} no longer answers: {error} {advice}") from error


def _watch(board: Any) -> int:
    from agentkit.distributed import RunStoreError
    from agentkit.loggers.program_table import ProgramTable

    with ProgramTable() as table, contextlib.suppress(KeyboardInterrupt), interruptible():
        while True:
            try:
                table.write(board.status())
            except RunStoreError:
                table.message("The program has ended, or its run store no longer answers.")
                break
            time.sleep(_WATCH_SECONDS)
    return 0


def _num_actors(status: dict[str, Any]) -> int:
    return sum(node["role"] == "actor" for node in status["nodes"].values())
