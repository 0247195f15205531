"""Runs ``agentkit compare``: which agent or setting is better, and how sure that is after few runs."""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from agentkit.cli.drawing.curves import EVALUATION, Curve, RunCurves, group_runs, read_all, say_left_out
from agentkit.cli.drawing.score_table import Basis, print_table, tell_stopped, tell_updates, text
from agentkit.cli.screen import say
from agentkit.errors import ConfigError, unknown_name
from agentkit.experiment.evaluation import aggregates
from agentkit.experiment.evaluation.aggregates import Estimate
from agentkit.files import refusing_unwritable


def _is_final(curve: Curve, asked: float | None) -> np.ndarray:
    # A batch of environments overshoots its last step. Of ten evaluations the ninth, at nine tenths of the steps asked
    # for, would else be in or out by chance.
    last = curve.steps[-1] if asked is None else min(asked, curve.steps[-1])
    return 10 * curve.steps >= 9 * last  # In whole numbers, which are exact.


SCORES: Mapping[str, tuple[str, Callable[[Curve, float | None], np.ndarray]]] = {
    "final": ("mean evaluation return in the last tenth of the steps that were evaluated", _is_final),
    "best": ("best evaluation return", lambda curve, _: np.arange(len(curve.steps)) == curve.returns.argmax()),
    "mean": ("mean evaluation return over all steps", lambda curve, _: np.ones(len(curve.steps), bool)),
}
"""Of which points of a run's curve its score is the mean, by the word of ``--score``; the steps asked for are given."""

Groups = dict[str, dict[str, np.ndarray]]
"""The scores of each group's runs ``[R]``, by environment."""

Bases = dict[str, dict[str, list[Basis]]]
"""What each of these scores is of."""


def compare(arguments: argparse.Namespace) -> int:
    """Prints the tables and draws the picture.

    Raises:
        ConfigError: a folder is no run, none has an evaluation, or the scores of several environments are to be put
            together and are not normalised.
    """
    from agentkit.cli.drawing.pictures import draw_comparison

    metric = EVALUATION if arguments.return_of is None else f"{EVALUATION}/{arguments.return_of}"
    runs, empty = read_all(arguments.runs, [metric])
    groups, bases = score_groups(runs, arguments.score, metric)
    environments = sorted({environment for scores in groups.values() for environment in scores})
    title, _ = SCORES[arguments.score]
    if arguments.return_of is not None:
        title += f", of {arguments.return_of}"
    normalised = arguments.normalize is not None
    if normalised:
        groups = normalise(groups, arguments.normalize)
        title += ", normalised"
    several = any(len(found) > 1 for scores in groups.values() for found in scores.values())
    together = normalised or len(environments) == 1
    common = complete(groups, environments) if together else {}
    brackets = " In brackets: 95 % stratified bootstrap interval." if several else ""
    say(f"Score: {title}.{brackets}")
    if not together:
        for environment in environments:
            print(f"\n{environment}")
            here = {group: [scores[environment]] for group, scores in groups.items() if environment in scores}
            _print(_estimates(here, False), here, {group: bases[group][environment] for group in here})
        tell_updates(runs)
        tell_stopped(runs)
        say(
            "\nNo picture is drawn of several environments whose scores are not normalised. To compare over all of "
            "them at once: --normalize minmax, or ENV=LOW:HIGH."
        )
        _write_csv(groups, bases, arguments.csv)
        say_left_out(empty, [metric])
        return 0
    tables = _estimates(common, normalised)
    print()
    _print(tables, common, {group: [basis for found in bases[group].values() for basis in found] for group in common})
    tell_updates(runs)
    tell_stopped(runs)
    _print_improvements({group: common[group] for group in _best_first(tables)})
    _print_few(groups)
    thresholds = _thresholds(common)
    profile = functools.partial(aggregates.performance_profile, thresholds=thresholds)
    profiles = {group: aggregates.estimate(profile, scores, 2_000) for group, scores in common.items()}
    where = environments[0] if len(environments) == 1 else f"{len(environments)} environments"
    draw_comparison(tables, profiles, thresholds, f"{where}; score: {title}", Path(arguments.out))
    print(f"\nWrote {arguments.out}")
    _write_csv(groups, bases, arguments.csv)
    say_left_out(empty, [metric])
    return 0


def score_groups(runs: Sequence[RunCurves], score: str, metric: str = EVALUATION) -> tuple[Groups, Bases]:
    """Returns the scores of runs by a metric, grouped by agent and settings, and of which evaluations each is."""
    _, points_of = SCORES[score]
    groups: Groups = {}
    bases: Bases = {}
    for label, group in group_runs(runs).items():
        for environment in dict.fromkeys(run.environment for run in group):
            found = [run for run in group if run.environment == environment]
            here = [(run, points_of(run.curves[metric], run.extent and run.extent.asked)) for run in found]
            scores = [run.curves[metric].returns[points].mean() for run, points in here]
            groups.setdefault(label, {})[environment] = np.array(scores, float)
            bases.setdefault(label, {})[environment] = [_basis(run, run.curves[metric], points) for run, points in here]
    return groups, bases


def _basis(run: RunCurves, curve: Curve, points: np.ndarray) -> Basis:
    steps = curve.steps[points].tolist()
    rows = {} if run.extent is None else run.extent.evaluations
    episodes = [rows[step]["evaluation_episodes"] for step in steps if "evaluation_episodes" in rows.get(step, {})]
    return Basis(steps[0], steps[-1], sum(episodes) if len(episodes) == len(steps) else None)


def normalise(groups: Groups, words: Sequence[str]) -> Groups:
    """Returns scores as shares of the way from a low to a high one.

    Args:
        groups: the scores.
        words: ``minmax``, from the least to the greatest score of any run in an environment; or ``ENV=LOW:HIGH`` for
            each environment.

    Raises:
        ConfigError: a word is neither, or an environment is without.
        UnknownNameError: no run is in an environment of this name; proposes the nearest one.
    """
    environments = sorted({environment for scores in groups.values() for environment in scores})
    ends: dict[str, tuple[float, float]] = {}
    for word in words:
        if word == "minmax":
            for environment in environments:
                pooled = np.concatenate([s[environment] for s in groups.values() if environment in s])
                ends.setdefault(environment, (float(pooled.min()), float(pooled.max())))
            continue
        environment, equals, text = word.rpartition("=")
        ends[environment] = _ends(word, text if equals else "")
        if environment not in environments:
            raise unknown_name("environment in --normalize", environment, environments)
    if missing := [environment for environment in environments if environment not in ends]:
        raise ConfigError(f"--normalize: nothing is said of {', '.join(missing)}. Add {missing[0]}=LOW:HIGH or minmax.")
    if flat := [environment for environment in environments if ends[environment][0] == ends[environment][1]]:
        raise ConfigError(f"--normalize: {flat[0]} has the same score at both ends, {ends[flat[0]][0]:g}.")
    return {
        group: {name: (runs - ends[name][0]) / (ends[name][1] - ends[name][0]) for name, runs in scores.items()}
        for group, scores in groups.items()
    }


def _ends(word: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in text.split(":"))
        if not np.isfinite([low, high]).all():
            raise ValueError(text)
    except ValueError:
        raise ConfigError(f"--normalize: expected minmax or ENV=LOW:HIGH, two numbers, found {word!r}.") from None
    return low, high


def complete(groups: Groups, environments: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Returns the scores of each group as a list over environments.

    Raises:
        ConfigError: a group lacks one.
    """
    for group, scores in groups.items():
        if missing := [environment for environment in environments if environment not in scores]:
            raise ConfigError(
                f"{group} has no run in {', '.join(missing)}, where others have. Compare runs in the same environments."
            )
    return {group: [scores[environment] for environment in environments] for group, scores in groups.items()}


def write_scores(groups: Groups, bases: Bases, path: Path) -> None:
    """Writes the score of each run and of which evaluations it is, a row each.

    Raises:
        ConfigError: the file cannot be written.
    """
    with refusing_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["runs", "environment", "score", "first_step", "last_step", "episodes"])
            for group, scores in groups.items():
                for environment, runs in scores.items():
                    found = zip(runs.tolist(), bases[group][environment], strict=True)
                    writer.writerows([group, environment, score, *basis] for score, basis in found)


def _write_csv(groups: Groups, bases: Bases, path: str | None) -> None:
    if path is not None:
        write_scores(groups, bases, Path(path))
        print(f"Wrote {path}")


def _estimates(groups: Mapping[str, Sequence[np.ndarray]], normalised: bool) -> dict[str, dict[str, Estimate]]:
    statistics: dict[str, aggregates.Statistic] = {
        "IQM": aggregates.interquartile_mean,
        "median": aggregates.median,
        "mean": aggregates.mean,
    }
    if all(len(scores) == 1 for scores in groups.values()):
        statistics["median"] = lambda drawn: np.median(drawn[0], axis=1)  # Over runs: there is one task.
    if normalised:
        statistics["optimality gap"] = aggregates.optimality_gap
    return {
        name: {group: aggregates.estimate(statistic, scores) for group, scores in groups.items()}
        for name, statistic in statistics.items()
    }


def _print(
    tables: Mapping[str, Mapping[str, Estimate]],
    scores: Mapping[str, Sequence[np.ndarray]],
    bases: Mapping[str, Sequence[Basis]],
) -> None:
    print_table(tables, scores, bases, _best_first(tables))


def _best_first(tables: Mapping[str, Mapping[str, Estimate]]) -> list[str]:
    return sorted(tables["IQM"], key=lambda group: -float(tables["IQM"][group].value))


def _print_improvements(groups: Mapping[str, Sequence[np.ndarray]]) -> None:
    if len(groups) < 2:
        return
    print("\nHow likely a run of the one beats a run of the other (0.5: they are alike):")
    for one, other in itertools.combinations(groups, 2):
        found = aggregates.probability_of_improvement(groups[one], groups[other], 2_000)
        print(f"  {one} over {other}: {text(found, groups[one], groups[other])}")


def _print_few(groups: Groups) -> None:
    few = [group for group, scores in groups.items() if min(map(len, scores.values())) < 3]
    if few:
        say(f"\nFewer than 3 runs say little about the next one: {', '.join(few)}.")


def _thresholds(groups: Mapping[str, Sequence[np.ndarray]]) -> np.ndarray:
    pooled = np.concatenate([runs for scores in groups.values() for runs in scores])
    margin = 0.05 * (pooled.max() - pooled.min()) or 1.0
    return np.linspace(pooled.min() - margin, pooled.max() + margin, 401)
