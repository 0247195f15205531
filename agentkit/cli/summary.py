"""Says at the end of a training what came of it, where it is, and what one would type next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkit.cli.interrupts import INTERRUPTED
from agentkit.cli.screen import command_line, say
from agentkit.errors import AgentkitError


def finish(
    result: Any,
    directory: str | os.PathLike[str],
    command: str,
    imports: Sequence[str] | None = None,
    again: Sequence[str] = (),
) -> int:
    """Prints how a run ended and how to go on; returns the exit code.

    Args:
        result: an `experiment.Result`, or a `LaunchResult`.
        directory: the run folder.
        command: the one that trained: "train", "launch", "offline".
        imports: packages that each command on the run needs to be told.
        again: words that a resumed run has to be given again.
    """
    resume = command_line(command, "--resume", directory, *again, imports=imports)
    word = "update" if command == "offline" else "step"
    if result.interrupted:
        say(f"Stopped at {word} {result.steps:,} and saved. Go on with:\n  {resume}")
        return INTERRUPTED
    if result.stopped_by is not None:
        say(f"Stopped at {word} {result.steps:,}: {result.stopped_by}.")
    if command == "launch" and not result.updates:  # A run in one process has said so itself.
        from agentkit.experiment.checks.short_runs import no_update

        say(no_update(result.steps))
    for line in returns(directory, word):
        say(line)
    more = ""
    is_whole = result.steps >= _total(directory)  # Else a callback has stopped it, and some of its steps are left.
    if is_whole:
        more = f" --{word}s {int(float(f'{2 * result.steps:.2g}')):_}"  # Of a program that ended at 3,007 steps: 6,000.
    print(f"Saved {directory}. Next:")
    best = " --checkpoint best" if (Path(directory) / "best").exists() else ""  # As `callbacks.keep_best` keeps it.
    print(f"  {command_line('evaluate', directory, imports=imports)}{best}")
    print(f"  {command_line('plot', directory)}")
    if not (is_whole and _learns_no_more(directory, result.steps)):
        print(f"  {resume}{more}")
    return 0


def returns(directory: str | os.PathLike[str], word: str = "step") -> list[str]:
    """Returns a line about the last and the best evaluation of a run; of a run without any, none.

    The best one is that whose policy is kept. Where another has a higher return, the line says by which rule.
    """
    from agentkit.experiment.runs.open_run import open_run

    rows: list[dict[str, float]] = []
    with contextlib.suppress(AgentkitError, OSError):  # A full disk may have taken the log.
        rows = [
            row
            for row in open_run(os.fspath(directory)).rows("evaluation")
            if {"steps", "episode_return"} <= row.keys()
        ]
    if not rows:
        return []
    last, highest = rows[-1], max(rows, key=lambda row: row["episode_return"])
    step, rule = _kept(directory)
    best = next((row for row in rows if row["steps"] == step), highest)
    said = f"Evaluation return: {last['episode_return']:,.1f} at {word} {last['steps']:,.0f}, the last"
    if best["episode_return"] == highest["episode_return"]:
        rule = "the best"
    if best is last or best["episode_return"] == last["episode_return"] == highest["episode_return"]:
        return [f"{said} and {rule.removeprefix('the ')}."]
    return [f"{said}; {best['episode_return']:,.1f} at {word} {best['steps']:,.0f}, {rule}."]


def _total(directory: str | os.PathLike[str]) -> int:
    """Returns the steps or updates that a run was to take; 0 where its folder does not say."""
    from agentkit.experiment import read_record

    with contextlib.suppress(AgentkitError):
        return int(read_record(os.fspath(directory))["num_steps"])
    return 0


def _learns_no_more(directory: str | os.PathLike[str], steps: int) -> bool:
    """Returns True if a run's step sizes have fallen to 0, as most presets' do at the end: more steps teach nothing."""
    from agentkit.experiment import read_record
    from agentkit.experiment.checks.short_runs import RATE, learning_ends, learns_by_rates
    from agentkit.experiment.config.recipes import decode

    with contextlib.suppress(AgentkitError, KeyError):
        record = read_record(os.fspath(directory))
        rates = {name: decode(code) for name, code in record["agent_config"].items() if name.endswith(RATE)}
        last = learning_ends(rates)
        return last is not None and last <= steps and learns_by_rates(record)
    return False


def _kept(directory: str | os.PathLike[str]) -> tuple[int | None, str]:
    """Returns the step of the policy that `keep_best` has kept, and by which rule; None where none is kept."""
    from agentkit.callbacks.best import read_best

    with contextlib.suppress(AgentkitError, OSError, KeyError):
        if (found := read_best(os.fspath(directory))) is not None:
            name = found.state["best"].get("score_name", "episode_return")
            if name != "episode_return":
                return found.step, f"kept as the best by {name}"
            return found.step, (
                "kept as the best: an evaluation of few episodes counts together with those just before it, once they "
                f"are enough; this one's score is {found.state['best']['score']:,.1f}"
            )
    return None, "the best"
