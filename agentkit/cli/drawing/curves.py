"""Reads curves from run folders, groups runs that differ only in their seed, and puts a group on common points."""

from __future__ import annotations

import collections
import difflib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentkit.cli.drawing.run_settings import environment_of, is_around_agent, setting_text, settings_of
from agentkit.cli.screen import say
from agentkit.errors import ConfigError
from agentkit.files import open_to_read

EVALUATION = "evaluation/episode_return"
TRAINING = "train/episode_return"
TRAINING_WINDOW = 20  # Episodes averaged in a line of training returns, where --smooth says nothing else.
_MOST_POINTS = 100  # Of a curve whose runs have points of their own each.
_SAMPLES = 2_000
_RUN_FILE = "config.json"
# Where the runs of `experiment.sweeps.seeds` and `experiment.sweeps` are in their folder.
_RUNS_INSIDE = (f"seed*/{_RUN_FILE}", f"trial-*/seed*/{_RUN_FILE}")

# The names of --x, and the column of a log that each is.
AXES = {"steps": "steps", "time": "seconds", "updates": "updates", "episodes": "episodes"}


class Curve(NamedTuple):
    """Holds values ``[N]`` at points ``[N]`` of the horizontal axis, in order of these."""

    steps: np.ndarray
    returns: np.ndarray


class Extent(NamedTuple):
    """Holds how far a run came, and what it was evaluated on.

    Attributes:
        directory: its folder.
        asked: steps that it is to take; None where its folder does not say.
        reached: the newest step that its checkpoints or evaluations are of.
        evaluations: rows of the log of evaluations, by their steps, in order.
    """

    directory: str
    asked: float | None
    reached: float
    evaluations: Mapping[float, Mapping[str, float]]


class RunCurves(NamedTuple):
    """Holds one run's settings and curves.

    Attributes:
        environment: its environment's name.
        settings: what tells its line from others of that environment, see `run_settings.settings_of`.
        curves: by metric, e.g. "evaluation/episode_return"; those that the run has.
        extent: how far it came; None where it has no evaluation.
        seed: of the run.
    """

    environment: str
    settings: Mapping[str, Any]
    curves: Mapping[str, Curve]
    extent: Extent | None = None
    seed: int | None = None


class Band(NamedTuple):
    """Holds the curve of a group of runs: points, middle, lower and upper end ``[N]``, and runs at each ``[N]``."""

    points: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_runs: np.ndarray


def read_run(run: str | Path, metrics: Sequence[str] = (EVALUATION, TRAINING), axis: str = "steps") -> RunCurves:
    """Reads the curves of a run folder; those of returns are of the environment's own rewards where both are read.

    Raises:
        ConfigError: it is no run folder, or its logs are damaged.
    """
    from agentkit.experiment.runs.open_run import open_run

    opened = open_run(run)
    config = opened.config
    curves = {metric: read_curve(opened, metric, axis) for metric in metrics}
    if {EVALUATION, TRAINING} <= curves.keys():  # They are drawn on one axis, and training's rewards may be clipped.
        for metric in (EVALUATION, TRAINING):
            curves[metric] = read_curve(opened, f"{metric.split('/')[0]}/episode_raw_return", axis) or curves[metric]
    found = {metric: curve for metric, curve in curves.items() if curve is not None}
    return RunCurves(environment_of(config), settings_of(config), found, _extent(run, opened), config.get("seed"))


def _extent(run: str | Path, opened: Any) -> Extent | None:
    from agentkit import checkpoint

    evaluations = {row["steps"]: row for row in opened.rows("evaluation") if "steps" in row}
    if not evaluations:
        return None
    saved = checkpoint.steps(Path(run) / "checkpoints")
    return Extent(str(run), opened.config.get("num_steps"), max(*evaluations, *saved, 0), evaluations)


def read_curve(run: Any, metric: str, axis: str) -> Curve | None:
    """Returns a metric, written ``log/column``, against one of `AXES`; None where a run has no finite value.

    A log without the axis's column has its points from another log, by the steps.
    """
    log, _, column = metric.partition("/")
    if log not in run.logs:
        return None
    rows = [row for row in run.rows(log) if column in row and np.isfinite(row[column])]
    place = _placer(run, rows, AXES[axis])
    points: dict[float, list[float]] = {}
    for row in rows:
        point = place(row)
        if point is not None:
            points.setdefault(point, []).append(row[column])
    if not points:
        return None
    order = sorted(points)
    return Curve(np.array(order), np.array([np.mean(points[point]) for point in order]))


def _placer(
    run: Any, rows: Sequence[Mapping[str, float]], column: str
) -> Callable[[Mapping[str, float]], float | None]:
    if all(column in row for row in rows):
        return lambda row: row[column]
    known = [row for log in run.logs for row in run.rows(log) if column in row and "steps" in row]
    if not known:
        return lambda row: None
    by_step = sorted({(row["steps"], row[column]) for row in known})
    if by_step[0][0] > 0:  # A run counts from 0, one that begins with another's training state too.
        by_step.insert(0, (0.0, 0.0))
    steps, values = (np.array(each) for each in zip(*by_step, strict=True))
    values = np.maximum.accumulate(values)
    return lambda row: float(np.interp(row["steps"], steps, values)) if "steps" in row else None


def group_runs(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Groups runs that differ in seed and environment only, under labels that name the settings in which groups differ.

    An agent with one set of settings in each environment is one group, also where these differ between environments.
    """
    by_agent: dict[str, list[RunCurves]] = {}
    for run in runs:
        by_agent.setdefault(run.settings["agent"], []).append(run)
    labelled: list[tuple[str, list[RunCurves]]] = []
    for agent, found in by_agent.items():
        told = _told_apart_by(found)
        of_group = {_key(settings): settings for settings in told}
        groups: dict[str, list[RunCurves]] = {}
        for run, settings in zip(found, told, strict=True):
            groups.setdefault(_key(settings), []).append(run)
        environments = [{run.environment for run in group} for group in groups.values()]
        if sum(map(len, environments)) == len(set().union(*environments)):
            labelled.append((agent, found))
            continue
        names = dict.fromkeys(name for settings in told for name in settings if name != "agent")
        differing = [name for name in names if len({_key(settings.get(name)) for settings in told}) > 1]
        for key, group in groups.items():
            labelled.append((" ".join([agent, *(setting_text(name, of_group[key]) for name in differing)]), group))
    return _numbered(labelled)


def _told_apart_by(runs: Sequence[RunCurves]) -> list[Mapping[str, Any]]:
    """Returns the settings of each run of an agent without those that tell no two runs of one environment apart.

    Its data, wrappers or arguments an environment has by its nature: they make no other line of the next one's runs.
    """
    found = [run.settings for run in runs]
    if _begin_as_seeds(runs):
        found = [one | {"init_from": one["init_from"] and "another run"} for one in map(dict, found)]
    environments = [run.environment for run in runs]

    def is_of_environment(name: str) -> bool:
        values = {(where, _key(one.get(name))) for where, one in zip(environments, found, strict=True)}
        return is_around_agent(name) and len(values) == len(set(environments))

    left_out = {name for name in set().union(*found) if is_of_environment(name)}
    return [{name: value for name, value in one.items() if name not in left_out} for one in found]


def _begin_as_seeds(runs: Sequence[RunCurves]) -> bool:
    """Returns whether runs that begin with others' training states do so as seeds: all with one, or each with its own.

    That is asked of the runs that are alike in all else.
    """
    seeds: dict[str, set[tuple[str, int | None]]] = {}
    for run in runs:
        if path := run.settings.get("init_from"):
            seeds.setdefault(_key([run.environment, {**run.settings, "init_from": None}]), set()).add((path, run.seed))
    counts = [(len(pairs), *(len(set(each)) for each in zip(*pairs, strict=True))) for pairs in seeds.values()]
    one_line = all(num_paths == 1 or num_paths == num_seeds == num for num, num_paths, num_seeds in counts)
    return one_line and len({path for pairs in seeds.values() for path, _ in pairs}) > 1


def _key(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True)


def _numbered(labelled: Sequence[tuple[str, list[RunCurves]]]) -> dict[str, list[RunCurves]]:
    """Returns groups by label, with a number where words do not say how they differ."""
    times, seen = collections.Counter(label for label, _ in labelled), collections.Counter[str]()
    found = {}
    for label, group in labelled:
        seen[label] += 1
        found[label if times[label] == 1 else f"{label} #{seen[label]}"] = group
    return found


def steps_title(runs: Sequence[RunCurves]) -> str:
    """Returns what the steps of runs are: an offline run has updates alone, which stand in their place."""
    offline = {run.settings.get("offline", False) for run in runs}
    if offline == {True}:
        return "updates"
    return "environment steps; of offline runs updates" if True in offline else "environment steps"


def smooth(curve: Curve, window: int) -> Curve:
    """Returns a running mean over the last `window` points."""
    # A window is the end of one block of its size and the beginning of the next. Differences of sums over the whole
    # curve would be quick as well, and lose all digits behind a large return.
    num = len(curve.returns)
    window = max(min(window, num), 1)
    blocks = np.pad(curve.returns, (0, -num % window)).reshape(-1, window)
    beginnings = np.cumsum(blocks, axis=1).ravel()[:num]
    ends = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    last = np.arange(num)
    first = np.maximum(last - window + 1, 0)
    sums = beginnings + np.where(first % window == 0, 0.0, ends[first])
    return Curve(curve.steps, sums / (last - first + 1))


def on_common_points(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Returns points ``[N]``, and the value of each run at them ``[runs, N]``, NaN outside of its own points.

    Runs that have all the same points keep them. Others, as those of launched programs, whose evaluations begin
    wherever the actors are, get equal bins: each run's mean in a bin, or what lies between its neighbours.
    """
    if all(np.array_equal(curve.steps, curves[0].steps) for curve in curves):
        return curves[0].steps, np.stack([curve.returns for curve in curves])
    last = max(curve.steps[-1] for curve in curves)
    num_bins = int(np.clip(np.median([len(curve.steps) for curve in curves]), 1, _MOST_POINTS))
    width = last / num_bins
    points = width * np.arange(1, num_bins + 1)  # Bins lie around these: evaluations come soon after such steps.
    inner = points[:-1] + width / 2
    values = np.full((len(curves), num_bins), np.nan)
    for row, curve in zip(values, curves, strict=True):
        bins = np.digitize(curve.steps, inner)
        counts = np.bincount(bins, minlength=num_bins)
        sums = np.bincount(bins, curve.returns, num_bins)
        row[counts > 0] = sums[counts > 0] / counts[counts > 0]
        inside = (points >= curve.steps[0] - width) & (points <= curve.steps[-1] + width / 2) & (counts == 0)
        row[inside] = np.interp(points[inside], curve.steps, curve.returns)
    filled = ~np.isnan(values).all(axis=0)
    return points[filled], values[:, filled]


def summarise(curves: Sequence[Curve], band: str = "ci", iqm: bool = False) -> Band:
    """Returns the middle of several runs, and a band around it.

    Args:
        curves: of one group.
        band: "ci", the bootstrap's 95 % interval of the middle; "std", a standard deviation; "range", from the least to
            the greatest.
        iqm: the middle is the interquartile mean, not the mean.
    """
    from agentkit.experiment.evaluation import aggregates

    points, values = on_common_points(curves)
    statistic = aggregates.interquartile_mean if iqm else aggregates.mean
    columns = [column[~np.isnan(column)] for column in values.T]
    if band == "ci":
        found = [aggregates.estimate(statistic, [column], _SAMPLES) for column in columns]
        middle, low, high = (np.array(each) for each in zip(*found, strict=True))
    else:
        middle = np.array([statistic([column[None]])[0] for column in columns])
        low, high = (np.array([function(column) for column in columns]) for function in (np.min, np.max))
        if band == "std":
            deviation = np.array([column.std() for column in columns])
            low, high = middle - deviation, middle + deviation
    return Band(points, middle, low, high, np.array([len(column) for column in columns]))


def find_runs(folders: Sequence[str]) -> list[str]:
    """Returns the run folders among folders, and those of the groups of seeds and of the sweeps among them.

    What else ``runs/*`` matches is left out with a line on standard error: a picture, an empty folder.

    Raises:
        ConfigError: a path does not exist, or none is or holds a run.
    """
    found: dict[str, None] = {}
    left_out = []
    for folder in folders:
        path = Path(folder)
        inside = [str(run.parent) for pattern in _RUNS_INSIDE for run in sorted(path.glob(pattern))]
        if (path / _RUN_FILE).is_file() or not path.exists():
            inside = [folder]  # Reading refuses what is not there, with the reason.
        if not inside:
            left_out.append(folder)
        found |= dict.fromkeys(inside)
    if not found:
        raise ConfigError(f"{folders[0]} is not a run folder, and no group or sweep that holds any: no {_RUN_FILE}.")
    if left_out:
        say(f"Left out, because no run is in there: {', '.join(left_out)}", sys.stderr)
    return list(found)


def _metrics_of(run: str) -> list[str]:
    """Returns the metrics that a run has written, as LOG/COLUMN."""
    found = []
    for path in sorted((Path(run) / "logs").glob("*.csv")):
        with open_to_read(path) as file:
            first = file.readline().decode("utf-8", errors="replace")
            found += [f"{path.stem}/{name}" for name in first.strip().split(",") if name not in AXES.values()]
    return found


def read_all(folders: Sequence[str], metrics: Sequence[str], axis: str = "steps") -> tuple[list[RunCurves], list[str]]:
    """Reads the runs of folders, see `find_runs`, and returns beside them the runs that have nothing to show yet.

    Raises:
        ConfigError: a path does not exist, there is no run, or none has anything.
    """
    found, empty = [], []
    runs = find_runs(folders)
    for run in runs:
        curves = read_run(run, metrics, axis)
        if curves.curves:
            found.append(curves)
        else:
            empty.append(run)
    if not found:
        who = runs[0] if len(runs) == 1 else f"Each of the {len(runs)} runs"
        if metrics[0] == EVALUATION:
            raise ConfigError(f"{who} holds no returns yet: no episode has ended, or no evaluation.")
        known = sorted({name for run in runs for name in _metrics_of(run)})
        nearest = difflib.get_close_matches(metrics[0], known, n=1)
        advice = f" Did you mean {nearest[0]}?" if nearest and metrics[0] not in known else ""
        raise ConfigError(
            f"{who} holds no {metrics[0]} against {axis} yet.{advice} There are: {', '.join(known) or 'none'}."
        )
    return found, empty


def say_left_out(empty: Sequence[str], metrics: Sequence[str], axis: str = "steps") -> None:
    """Says which runs have nothing to show, and of one metric which is the nearest that each has.

    Args:
        empty: the runs, as `read_all` returns them.
        metrics: what they were to show.
        axis: against which of `AXES`.
    """
    if not empty:
        return
    if metrics[0] == EVALUATION:
        what = "no evaluation" if len(metrics) == 1 else "nothing"
        say(f"Left out, because {what} is logged there yet: {', '.join(empty)}")
        return
    nearest = {run: difflib.get_close_matches(metrics[0], _metrics_of(run), n=1) for run in empty}
    runs = [f"{run} (nearest: {found[0]})" if found else run for run, found in nearest.items()]
    say(f"Left out, because they have no {metrics[0]} against {axis} yet: {', '.join(runs)}")
