"""Runs ``agentkit plot``: draws returns, or another metric, against steps, time, updates or episodes."""

from __future__ import annotations

import argparse
import collections
import csv
from collections.abc import Sequence
from pathlib import Path

from agentkit.cli.drawing.curves import (
    EVALUATION,
    TRAINING,
    TRAINING_WINDOW,
    Band,
    RunCurves,
    group_runs,
    read_all,
    say_left_out,
    smooth,
    steps_title,
    summarise,
)
from agentkit.errors import ConfigError
from agentkit.files import refusing_unwritable

Lines = dict[str, dict[str, dict[str, Band]]]
"""What is drawn, by environment, label of the group, and metric."""


def plot(arguments: argparse.Namespace) -> int:
    """Draws the runs and says where; says which have nothing to draw yet.

    Raises:
        ConfigError: a folder is no run, none has anything to draw, or the picture cannot be written.
    """
    from agentkit.cli.drawing.pictures import draw_curves

    metrics = [EVALUATION, TRAINING] if arguments.metric is None else [arguments.metric]
    if any("/" not in metric for metric in metrics):
        raise ConfigError(f"--metric: expected LOG/COLUMN, such as learner/loss, found {arguments.metric!r}.")
    runs, empty = read_all(arguments.runs, metrics, arguments.x)
    lines = make_lines(runs, arguments.band, iqm=arguments.iqm, window=arguments.smooth)
    output = Path(arguments.out)
    # What steps are may differ between panels: an offline run has updates in their place.
    steps = {where: steps_title([run for run in runs if run.environment == where]) for where in lines}
    middle = "IQM" if arguments.iqm else "mean"
    draw_curves(lines, output, axis=arguments.x, steps=steps, middle=middle, band=arguments.band)
    if arguments.csv is not None:
        write_csv(lines, Path(arguments.csv), arguments.x)
    say_left_out(empty, metrics, arguments.x)
    for path in (output, *([] if arguments.csv is None else [arguments.csv])):
        print(f"Wrote {path}")
    return 0


def make_lines(runs: Sequence[RunCurves], band: str = "ci", *, iqm: bool = False, window: int | None = None) -> Lines:
    """Returns a line for each environment, group of runs that differ in their seed only, and metric.

    Args:
        runs: any.
        band: ci, std or range.
        iqm: see `curves.summarise`.
        window: points of the running mean; None smooths training returns only.
    """
    lines: Lines = {environment: {} for environment in dict.fromkeys(run.environment for run in runs)}
    for label, group in group_runs(runs).items():
        numbers = collections.Counter(run.environment for run in group)
        for environment in numbers:
            here = [run for run in group if run.environment == environment]
            bands = lines[environment].setdefault(label + _seeds(list(numbers.values())), {})
            for metric in dict.fromkeys(metric for run in here for metric in run.curves):
                size = (TRAINING_WINDOW if metric == TRAINING else 1) if window is None else window
                curves = [smooth(run.curves[metric], size) for run in here if metric in run.curves]
                bands[metric] = summarise(curves, band, iqm)
    return lines


def _seeds(numbers: Sequence[int]) -> str:
    """Returns how many runs a line is of; nothing of a single one."""
    least, most = min(numbers), max(numbers)
    if most == 1:
        return ""
    return f" ({most} seeds)" if least == most else f" ({least} to {most} seeds)"


def write_csv(lines: Lines, path: Path, axis: str) -> None:
    """Writes the points of the lines, a row each.

    Raises:
        ConfigError: the file cannot be written.
    """
    columns = ["environment", "runs", "metric", axis, "middle", "low", "high", "num_runs"]
    with refusing_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for environment, groups in lines.items():
                for label, metrics in groups.items():
                    for metric, band in metrics.items():
                        rows = zip(*(values.tolist() for values in band), strict=True)
                        writer.writerows([environment, label, metric, *row] for row in rows)
