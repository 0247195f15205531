"""Says at the end of a training what came of it, where it is, and what one would type next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkit.cli.screen import say
from agentkit.errors import AgentkitError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def finish(result: Any, directory: str | os.PathLike[str], command: str, imports: Sequence[str] | None = None) -> int:
    """Prints how a run ended and how to go on; returns the exit code.

    Args:
        result: an `experiment.Result`, or a `LaunchResult`.
        directory: the run folder.
        command: the one that trained: "train", "launch", "offline".
        imports: packages that each command on the run needs to be told.
    """
    named = "".join(f" --import {package}" for package in imports or ())
    resume = f"agentkit {command} --resume {directory}{named}"
    word = "update" if command == "offline" else "step"
    if result.interrupted:
        say(f"Stopped at {word} {result.steps:,} and saved. Go on with:\n  {resume}")
        return INTERRUPTED
    if result.stopped_by is not None:
        say(f"Stopped at {word} {result.steps:,}: {result.stopped_by}.")
    for line in returns(directory, word):
        say(line)
    twice = int(float(f"{2 * result.steps:.2g}"))  # Of a program that ended at 3,007 steps: 6,000.
    print(f"Saved {directory}. Next:")
    best = " --checkpoint best" if (Path(directory) / "best").exists() else ""  # As `callbacks.keep_best` keeps it.
    print(f"  agentkit evaluate {directory}{named}{best}")
    print(f"  agentkit plot {directory}")
    print(f"  {resume} --{word}s {twice:_}")
    return 0


def returns(directory: str | os.PathLike[str], word: str = "step") -> list[str]:
    """Returns a line about the best and the last evaluation of a run; of a run without any, none.

    The best one is that whose policy is kept, which is not always the one with the highest return.
    """
    from agentkit import checkpoint
    from agentkit.experiment.run_folder import open_run

    rows: list[dict[str, float]] = []
    with contextlib.suppress(AgentkitError, OSError):  # A full disk may have taken the log.
        rows = [
            row
            for row in open_run(os.fspath(directory)).rows("evaluation")
            if {"steps", "episode_return"} <= row.keys()
        ]
    if not rows:
        return []
    kept, last = checkpoint.steps(Path(directory) / "best")[-1:], rows[-1]
    best = next((row for row in rows if [int(row["steps"])] == kept), None)
    best = best or max(rows, key=lambda row: row["episode_return"])
    said = f"Evaluation return: {last['episode_return']:,.1f} at {word} {last['steps']:,.0f}, the last"
    if best is last or best["episode_return"] == last["episode_return"]:
        return [f"{said} and best."]
    label = "the best" if best["episode_return"] > last["episode_return"] else "kept as the best"
    return [f"{said}; {best['episode_return']:,.1f} at {word} {best['steps']:,.0f}, {label}."]
