"""Runs ``agentkit plot``: draws returns against steps, as a PNG (or any format that matplotlib writes)."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentkit.errors import ConfigError
from agentkit.loggers import read_csv

_TRAINING_WINDOW = 20  # Episodes averaged in the faint line of training returns.


class Curve(NamedTuple):
    """Holds episode returns ``[N]`` at environment steps ``[N]``, in order of steps."""

    steps: np.ndarray
    returns: np.ndarray


class RunCurves(NamedTuple):
    """Holds one run's settings and curves, to be drawn.

    Attributes:
        environment: its environment's name.
        settings: what tells its line from others of that environment: agent, replay, agent config.
        evaluation: evaluation returns; None if there are none.
        training: training returns, averaged over some episodes; None if there are none.
    """

    environment: str
    settings: Mapping[str, Any]
    evaluation: Curve | None
    training: Curve | None


def plot(arguments: argparse.Namespace) -> int:
    """Draws the runs and says where."""
    output = Path(arguments.output)
    draw([read_run(run) for run in arguments.runs], output)
    print(f"Wrote {output}")
    return 0


def read_run(run: str | Path) -> RunCurves:
    """Reads the curves of a run folder.

    Raises:
        ConfigError: if it is no run folder, or holds no returns yet.
    """
    run = Path(run)
    from agentkit.experiment.config import read_record

    config = read_record(run)
    evaluation = _read_curve(run / "logs" / "evaluation.csv")
    training = _smooth(_read_curve(run / "logs" / "train.csv"))
    if evaluation is None and training is None:
        raise ConfigError(f"{str(run)!r} holds no returns yet: no episode has ended.")
    # An agent or environment of the user's own code has no name there.
    settings = {"agent": config["agent"] or "own agent", "replay": config["replay"], **config["agent_config"]}
    return RunCurves(config["environment"] or "own environment", settings, evaluation, training)


def draw(runs: Sequence[RunCurves], output: Path) -> None:
    """Draws one picture: an axis for each environment, a line for each group of runs that differ in seed only.

    Raises:
        ConfigError: if the picture cannot be written there.
    """
    from matplotlib.figure import Figure  # Not pyplot: no window, no global state.

    environments = list(dict.fromkeys(run.environment for run in runs))
    figure = Figure(figsize=(7.0 * len(environments), 4.5), layout="constrained")
    for axis, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        for number, (label, group) in enumerate(group_runs([r for r in runs if r.environment == environment]).items()):
            _draw_group(axis, label, group, f"C{number % 10}")
        axis.set(title=environment, xlabel="environment steps", ylabel="episode return")
        axis.grid(alpha=0.3)
        axis.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(output, dpi=120)
    except (ValueError, OSError) as error:
        raise ConfigError(f"Cannot write the picture {str(output)!r}: {error}") from error


def group_runs(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Groups runs of equal settings, under labels that name the settings in which the groups differ."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    names = dict.fromkeys(name for run in runs for name in run.settings if name != "agent")
    by_agent: dict[str, list[RunCurves]] = {}
    for group in groups.values():
        by_agent.setdefault(group[0].settings["agent"], []).append(group[0])

    labels: dict[str, list[RunCurves]] = {}
    for group in groups.values():
        settings = group[0].settings
        siblings = by_agent[settings["agent"]]
        differing = [n for n in names if any(s.settings.get(n) != settings.get(n) for s in siblings)]
        label = " ".join([settings["agent"], *(f"{name}={settings.get(name)}" for name in differing)])
        labels[f"{label} ({len(group)} seeds)" if len(group) > 1 else label] = group
    return labels


def mean_and_range(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns steps ``[N]``, and mean, minimum and maximum of several curves over their common steps.

    Curves are interpolated linearly between their points, and left out where they have none.
    """
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    values = np.stack([np.interp(steps, c.steps, c.returns, np.nan, np.nan) for c in curves])  # [runs, N]
    return steps, np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0)


def _draw_group(axis: Any, label: str, group: Sequence[RunCurves], color: str) -> None:
    evaluations = [run.evaluation for run in group if run.evaluation is not None]
    trainings = [run.training for run in group if run.training is not None]
    if trainings:
        steps, mean, _, _ = mean_and_range(trainings)
        faint = 0.35 if evaluations else 1.0
        axis.plot(steps, mean, color=color, alpha=faint, linewidth=1, label=f"{label}, training")
    if evaluations:
        steps, mean, low, high = mean_and_range(evaluations)
        axis.plot(steps, mean, color=color, linewidth=2, marker="o", markersize=3, label=label)
        axis.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


def _read_curve(path: Path) -> Curve | None:
    if not path.is_file():
        return None
    by_step: dict[float, list[float]] = {}
    for row in read_csv(path)[1]:
        if row.get("steps") and row.get("episode_return"):
            try:
                step, value = float(row["steps"]), float(row["episode_return"])
            except ValueError as error:
                raise ConfigError(f"The log {path} is damaged: {error}. Mend it, or move it away.") from error
            if math.isfinite(value):
                by_step.setdefault(step, []).append(value)
    if not by_step:
        return None
    steps = sorted(by_step)
    return Curve(np.array(steps), np.array([np.mean(by_step[step]) for step in steps]))


def _smooth(curve: Curve | None) -> Curve | None:
    """Returns a running mean over the last episodes."""
    if curve is None:
        return None
    sums = np.concatenate([[0.0], np.cumsum(curve.returns)])
    last = np.arange(1, len(sums))
    first = np.maximum(last - _TRAINING_WINDOW, 0)
    return Curve(curve.steps, (sums[last] - sums[first]) / (last - first))
