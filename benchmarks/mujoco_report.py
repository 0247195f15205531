"""Table and plots of what `mujoco_runs.py` and `cartpole_runs.py` recorded."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np
from mujoco_runs import PUBLISHED

_ABOUT = """# MuJoCo

Made by `benchmarks/mujoco_runs.py`, which has the settings; commands are below. "Last" is the mean of 20 episodes of
the last checkpoint, "best" the largest mean over seeds of the evaluations on the way (10 episodes each, {num} in a
run): that is what the published column says, too ("maximum average return", Tianshou, arXiv:2107.14171, table 3; all
at 1,000,000 steps, on v3 of the environments with 10 seeds). Runs of agents that step many environments at once are
on EnvPool's v4, others on gymnasium's v5. Seconds are of one run pinned to one core, with others beside it; some were
paused for other work meanwhile, which is counted.

"""


def write(
    runs: dict[str, Any],
    folder: pathlib.Path,
    name: str = "mujoco",
    about: str = _ABOUT,
    counted: str = "environment steps",
) -> None:
    """Writes ``NAME.md``, which begins with `about`, and a plot over `counted` for each environment."""
    if not runs:
        raise SystemExit("Nothing is recorded.")
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in runs.values():
        groups.setdefault((run["environment"], run["agent"], run["num_steps"]), []).append(run)
    rows = [
        "| environment | agent | steps | seeds | last: mean (of each seed) | best | published, 1M steps "
        "| best / published | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(*key, group) for key, group in sorted(groups.items())]
    plots = [
        _plot([(key, group) for key, group in sorted(groups.items()) if key[0] == environment], counted, folder / name)
        for environment in sorted({key[0] for key in groups})
    ]
    # One for each agent and number of steps: they differ in environment and seed.
    commands = dict.fromkeys(
        run["command"].replace(run["environment"], "ENVIRONMENT").replace(f"--seed {run['seed']} ", "--seed SEED ")
        for run in runs.values()
    )
    evaluations = max(len(run["curve"]) for run in runs.values())
    text = about.format(num=evaluations) + "\n".join(rows) + "\n\n"
    text += "\n".join(f"![{plot}]({plot})" for plot in plots)
    (folder / f"{name}.md").write_text(text + "\n\n```\n" + "\n".join(commands) + "\n```\n")


def _row(environment: str, agent: str, num_steps: int, group: list[dict[str, Any]]) -> str:
    last = [run["mean_return"] for run in sorted(group, key=lambda run: run["seed"])]
    _, curves = _curves(group)
    best = float(np.max(np.mean(curves, axis=0)))
    published = PUBLISHED.get(agent, {}).get(environment)
    ratio = "" if published is None or published < 0 else f"{best / published:.2f}"
    return (
        f"| {environment} | {agent} | {num_steps:,} | {len(group)} | {statistics.mean(last):.1f} "
        f"({', '.join(f'{value:.1f}' for value in last)}) | {best:.1f} | {'' if published is None else published} "
        f"| {ratio} | {statistics.median(run['seconds'] for run in group)} |"
    )


def _curves(group: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[N]`` and returns ``[seeds, N]``: evaluations of the seeds lie at about the same steps."""
    num = min(len(run["curve"]) for run in group)
    steps = np.mean([[step for step, _ in run["curve"][:num]] for run in group], axis=0)
    return steps, np.array([[value for _, value in run["curve"][:num]] for run in group])


def _plot(groups: list[tuple[tuple[str, str, int], list[dict[str, Any]]]], counted: str, name: pathlib.Path) -> str:
    """The name of the plot of one environment's runs, which is that of the report and the environment's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axis = figure.subplots()
    environment = groups[0][0][0]
    for number, ((_, agent, _), group) in enumerate(groups):
        steps, returns = _curves(group)
        style = "-" if number < 10 else "--"  # There are ten colours.
        label = f"{agent}, {len(group)} seed{'s' * (len(group) > 1)}"
        (line,) = axis.plot(steps, returns.mean(axis=0), style, label=label)
        axis.fill_between(steps, returns.min(axis=0), returns.max(axis=0), alpha=0.2, color=line.get_color())
    axis.set(title=environment, xlabel=counted, ylabel="evaluation return (mean; least to greatest seed)")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))  # Beside the curves, which fill the plot.
    file = name.with_name(f"{name.name}-{environment}.png")
    figure.savefig(file, dpi=90)
    return file.name
