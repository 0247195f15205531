"""Prints the tables of ``agentkit compare``: scores of groups of runs, and of which steps and episodes these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agentkit.cli.drawing.curves import RunCurves, steps_title
from agentkit.cli.screen import hang, say, width
from agentkit.experiment.evaluation.aggregates import Estimate

_MOST_NAMED = 5


class Basis(NamedTuple):
    """Holds what a run's score is of.

    Attributes:
        first: step of the first evaluation that is in it.
        last: step of the last one.
        episodes: of these evaluations together; None where the log does not say it.
    """

    first: float
    last: float
    episodes: float | None


def print_table(
    tables: Mapping[str, Mapping[str, Estimate]], scores: Mapping[str, Sequence[np.ndarray]],
    bases: Mapping[str, Sequence[Basis]], groups: Sequence[str],
) -> None:  # fmt: skip
    """Prints a row for each group, or a block where the terminal is too narrow for rows.

    Args:
        tables: by aggregate and group.
        scores: of each group's runs ``[R]``, a list over environments.
        bases: of each group's runs.
        groups: in the order to be printed.
    """
    titles = ["", "runs", "at step", "episodes", *tables]
    rows = [
        [
            group,
            str(sum(map(len, scores[group]))),
            _range(step for basis in bases[group] for step in (basis.first, basis.last)),
            _range(basis.episodes for basis in bases[group]),
            *(text(estimates[group], scores[group]) for estimates in tables.values()),
        ]
        for group in groups
    ]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    columns = width()
    if columns is None or sum(widths) + 2 * (len(widths) - 1) <= columns:
        for row in (titles, *rows):
            print("  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
        return
    size = max(map(len, titles))
    for row in rows:
        print(hang(row[0], columns, 2))
        for title, cell in zip(titles[1:], row[1:], strict=True):
            print(f"  {title.ljust(size)}  {cell}".rstrip())


def text(found: Estimate, *scores: Sequence[np.ndarray]) -> str:
    """Returns an estimate with its interval, which single runs do not have: nothing says how much they vary.

    Args:
        found: the estimate.
        *scores: that it is of: runs ``[R]`` for each environment.
    """
    if min(len(runs) for each in scores for runs in each) < 2:
        return _number(found.value)
    return f"{_number(found.value)} [{_number(found.low)}, {_number(found.high)}]"


def tell_updates(runs: Sequence[RunCurves]) -> None:
    """Says which of the steps in a table are updates, where there are such."""
    title = steps_title(runs)
    if "updates" in title:
        say(f"At step: {title}.")


def tell_stopped(runs: Iterable[RunCurves]) -> None:
    """Says of runs that ended before the steps they were to take how far they came, and when they were evaluated."""
    lines = [line for run in runs if (line := _stopped(run))]
    if not lines:
        return
    say("\nNot trained to their end, and scored by the evaluations that there are:")
    for line in lines[:_MOST_NAMED]:
        say(f"  {line}")
    if len(lines) > _MOST_NAMED:
        say(f"  and {len(lines) - _MOST_NAMED} more")


def _stopped(run: RunCurves) -> str:
    extent = run.extent
    if extent is None or extent.asked is None or extent.reached >= extent.asked:
        return ""
    (last,) = list(extent.evaluations)[-1:]
    untrained = ", before its first update" if extent.evaluations[last].get("updates") == 0 else ""
    return (
        f"{extent.directory}: step {extent.reached:,.0f} of {extent.asked:,.0f}, last evaluated at step "
        f"{last:,.0f}{untrained}"
    )


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "?"
    low, high = (f"{end:,.0f}" for end in (min(known), max(known)))
    return low if low == high else f"{low}-{high}"


def _number(value: np.ndarray) -> str:
    """Returns three digits, or all before the point."""
    return f"{float(value):,.0f}" if abs(float(value)) >= 100 else f"{float(value):.3g}"
