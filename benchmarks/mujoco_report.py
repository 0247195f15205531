"""Table and plots of what `mujoco_runs.py` and `cartpole_runs.py` recorded."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np
from mujoco_runs import PUBLISHED

from agentkit.cli.curves import EVALUATION, Band
from agentkit.cli.pictures import draw_curves

_ABOUT = """# MuJoCo

Made by `benchmarks/mujoco_runs.py`, which has the settings; commands are below. "Last" is the mean of 20 episodes of
the last checkpoint, "best" the largest mean over seeds of the evaluations on the way (10 episodes each, {num} in a
run): that is what the published column says, too ("maximum average return", Tianshou, arXiv:2107.14171, table 3; all
at 1,000,000 steps, on v3 of the environments with 10 seeds). Runs of agents that step many environments at once are
on EnvPool's v4, others on gymnasium's v5. Seconds are of one run pinned to one core, with others beside it; some were
paused for other work meanwhile, which is counted.

"""

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


def write(
    runs: dict[str, Any],
    folder: pathlib.Path,
    name: str = "mujoco",
    about: str = _ABOUT,
    axis: str = "steps",
) -> None:
    """Writes ``NAME.md``, which begins with `about`, and a plot for each environment.

    Args:
        runs: by name.
        folder: for the files.
        name: of the page; its plots begin with it.
        about: the page's beginning.
        axis: what the plots are over, "steps" or "updates".
    """
    if not runs:
        raise SystemExit("Nothing is recorded.")
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in runs.values():
        groups.setdefault((run["environment"], run["agent"], run["num_steps"]), []).append(run)
    rows = [_COLUMNS, *(_row(*key, group) for key, group in sorted(groups.items()))]
    plots = [
        _plot([(key, group) for key, group in sorted(groups.items()) if key[0] == environment], axis, folder / name)
        for environment in sorted({key[0] for key in groups})
    ]
    # One for each agent and number of steps: they differ in environment and seed.
    commands = dict.fromkeys(
        run["command"].replace(run["environment"], "ENVIRONMENT").replace(f"--seed {run['seed']} ", "--seed SEED ")
        for run in runs.values()
    )
    evaluations = max(len(run["curve"]) for run in runs.values())
    text = about.format(num=evaluations) + _table(rows) + "\n\n"
    text += "\n".join(f"![{plot}]({plot})" for plot in plots)
    (folder / f"{name}.md").write_text(text + "\n\n```\n" + "\n".join(commands) + "\n```\n")


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


def _plot(groups: list[tuple[tuple[str, str, int], list[dict[str, Any]]]], axis: str, name: pathlib.Path) -> str:
    """Draws one environment's runs as `agentkit plot` does, and returns the file's name."""
    lines: dict[str, dict[str, Band]] = {}
    for (_, agent, _), group in groups:
        steps, returns = _curves(group)
        label = f"{agent} ({len(group)} seed{'s' * (len(group) > 1)})"
        count = np.full(len(steps), len(group))
        lines[label] = {EVALUATION: Band(steps, returns.mean(axis=0), returns.min(axis=0), returns.max(axis=0), count)}
    environment = groups[0][0][0]
    file = name.with_name(f"{name.name}-{environment}.png")
    draw_curves({environment: lines}, file, axis=axis, middle="mean", band="range")
    return file.name
