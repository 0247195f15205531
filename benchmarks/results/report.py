"""Table and plots of what `runs.py` recorded."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np
from plans import PUBLISHED

from agentkit.cli.drawing.curves import EVALUATION, Band
from agentkit.cli.drawing.pictures import draw_curves

_MARK = "<!-- What follows is written by benchmarks/results/runs.py. -->\n"

_PUBLISHED_STEPS = 1_000_000
"""Steps of the published runs: those of fewer steps are not divided by their returns."""

_COLUMNS = (
    "environment",
    "agent",
    "steps",
    "seeds",
    "last: mean (of each seed)",
    "best",
    "published",
    "best / published",
    "seconds",
)


def write(runs: dict[str, Any], page: pathlib.Path, axis: str = "steps") -> None:
    """Writes table, plots and commands below the mark in a page, and a plot for each environment beside it.

    Args:
        runs: by name.
        page: its plots begin with its name.
        axis: what the plots are over, "steps" or "updates".
    """
    if not runs:
        raise SystemExit("Nothing is recorded.")
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in runs.values():
        groups.setdefault((run["environment"], run["agent"], run["num_steps"]), []).append(run)
    rows = [_COLUMNS, *(_row(*key, group) for key, group in sorted(groups.items()))]
    plots = [
        _plot([(key, group) for key, group in sorted(groups.items()) if key[0] == environment], axis, page)
        for environment in sorted({key[0] for key in groups})
    ]
    # One for each agent and number of steps: they differ in environment and seed.
    commands = dict.fromkeys(
        run["command"].replace(run["environment"], "ENVIRONMENT").replace(f"--seed {run['seed']} ", "--seed SEED ")
        for run in runs.values()
    )
    about = page.read_text().partition(_MARK)[0] if page.exists() else f"# {page.stem}\n\n"
    text = "\n".join([_table(rows), "", *(f"![{plot}]({plot})" for plot in plots), "", "```", *commands, "```", ""])
    page.write_text(f"{about}{_MARK}\n{text}")


def _row(environment: str, agent: str, num_steps: int, group: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the cells of `_COLUMNS`."""
    last = [run["mean_return"] for run in sorted(group, key=lambda run: run["seed"])]
    _, curves = _curves(group)
    best = float(np.max(np.mean(curves, axis=0)))
    published = PUBLISHED.get(agent, {}).get(environment)
    return (
        environment,
        agent,
        f"{num_steps:,}",
        str(len(group)),
        f"{statistics.mean(last):.1f} ({', '.join(f'{value:.1f}' for value in last)})",
        f"{best:.1f}",
        "" if published is None else f"{published} at {_PUBLISHED_STEPS:,}",
        "" if published is None or published < 0 or num_steps < _PUBLISHED_STEPS else f"{best / published:.2f}",
        str(statistics.median(run["seconds"] for run in group)),
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    """Returns a table of Markdown, the first row its head, without columns that have nothing below it."""
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])


def _curves(group: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[N]`` and returns ``[seeds, N]``: evaluations of the seeds lie at about the same steps."""
    num = min(len(run["curve"]) for run in group)
    steps = np.mean([[step for step, _ in run["curve"][:num]] for run in group], axis=0)
    return steps, np.array([[value for _, value in run["curve"][:num]] for run in group])


def _plot(groups: list[tuple[tuple[str, str, int], list[dict[str, Any]]]], axis: str, page: pathlib.Path) -> str:
    """Draws one environment's runs as `agentkit plot` does, and returns the file's name."""
    lines: dict[str, dict[str, Band]] = {}
    for (_, agent, _), group in groups:
        steps, returns = _curves(group)
        label = f"{agent} ({len(group)} seed{'s' * (len(group) > 1)})"
        count = np.full(len(steps), len(group))
        lines[label] = {EVALUATION: Band(steps, returns.mean(axis=0), returns.min(axis=0), returns.max(axis=0), count)}
    environment = groups[0][0][0]
    file = page.with_name(f"{page.stem}-{environment}.png")
    draw_curves({environment: lines}, file, axis=axis, middle="mean", band="range")
    return file.name
