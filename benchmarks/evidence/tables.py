"""Makes the tables and plots of docs/results from the records."""

from __future__ import annotations

import itertools
import pathlib
import statistics
from collections.abc import Iterable, Iterator

import numpy as np

from agentkit.cli.drawing.curves import EVALUATION, Band
from agentkit.experiment.evaluation import aggregates
from benchmarks.evidence.plan import DOCS, Record, read_published

MARK = "<!-- What follows is written by python -m benchmarks.evidence tables. -->\n"
_COLUMNS = (
    "environment", "agent", "steps", "seeds", "last: mean (of each seed)", "95 % interval", "best", "published",
    "best / published", "hours",
)  # fmt: skip
_LEAST_FOR_INTERVAL = 3
Group = list[Record]
"""Runs that differ in their seed only, in the order of these."""


def groups_by_page(records: Iterable[Record]) -> dict[str, list[Group]]:
    """Returns the groups of each page, by environment, agent and steps."""

    def kind(record: Record) -> tuple[str, str, str, int]:
        return record.run.page, record.run.task, record.run.label, record.run.steps

    pages: dict[str, list[Group]] = {}
    ordered = sorted(records, key=lambda record: (kind(record), record.run.seed))
    for (page, *_), group in itertools.groupby(ordered, kind):
        pages.setdefault(page, []).append(list(group))
    return pages


def text(page: str, groups: list[Group]) -> str:
    """Returns what stands below the mark of a page: its table, its plots, and the commands."""
    published = read_published()
    rows = [_COLUMNS, *(_row(group, published) for group in groups)]
    kept = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows[1:])]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in rows]
    plots = [f"![{task}]({picture(page, task)})" for task in _tasks(groups)]
    commands = dict.fromkeys(record.run.command() for group in groups for record in group)
    table = [lines[0], "|" + "---|" * len(kept), *lines[1:]]
    return "\n".join([MARK, *table, "", *plots, "", "```", *commands, "```", ""])


def write(records: Iterable[Record], docs: pathlib.Path = DOCS) -> None:
    """Writes the part below the mark of each page, and a plot for each of its environments."""
    from agentkit.cli.drawing.pictures import draw_curves

    for page, groups in groups_by_page(records).items():
        path = docs / f"{page}.md"
        about = path.read_text().partition(MARK)[0] if path.exists() else f"# {page}\n\n"
        path.write_text(about + text(page, groups))
        for task in _tasks(groups):
            found = [group for group in groups if group[0].run.task == task]
            lines = {task: {label: {EVALUATION: _band(group)} for label, group in _labelled(found)}}
            axis = "updates" if found[0][0].run.data else "steps"
            steps = {task: "environment steps"}
            draw_curves(lines, docs / picture(page, task), axis=axis, steps=steps, middle="mean", band="range")


def picture(page: str, task: str) -> str:
    """Returns the name of the file with the plot of one environment."""
    return f"{page}-{task.replace('/', '_')}.png"


def _tasks(groups: list[Group]) -> list[str]:
    return list(dict.fromkeys(group[0].run.task for group in groups))


def _labelled(groups: list[Group]) -> Iterator[tuple[str, Group]]:
    labels = [group[0].run.label for group in groups]
    for label, group in zip(labels, groups, strict=True):
        steps = f" {group[0].run.steps:,} steps" if labels.count(label) > 1 else ""
        yield f"{label}{steps} ({len(group)} seed{'s' * (len(group) > 1)})", group


def _row(group: Group, published: dict[tuple[str, str], tuple[float, int]]) -> tuple[str, ...]:
    """Returns the cells of `_COLUMNS`."""
    run, last = group[0].run, [record.evaluations[-1][1] for record in group]
    best = float(np.max(np.mean(_curves(group)[1], axis=0)))
    interval, beside, share = "", "", ""
    if len(group) >= _LEAST_FOR_INTERVAL:
        found = aggregates.estimate(aggregates.mean, [np.array(last)])
        interval = f"{found.low:.0f} to {found.high:.0f}"
    if (run.agent, run.task) in published:
        value, steps = published[run.agent, run.task]
        beside = f"{value} at {steps:,}"
        share = f"{best / value:.2f}" if value > 0 and run.steps >= steps else ""
    return (
        run.task,
        run.label,
        f"{run.steps:,}",
        str(len(group)),
        f"{statistics.mean(last):.1f} ({', '.join(f'{value:.1f}' for value in last)})",
        interval,
        f"{best:.1f}",
        beside,
        share,
        f"{statistics.median(record.processor_hours for record in group):.2g}",
    )


def _curves(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps ``[N]`` and returns ``[seeds, N]``: evaluations of the seeds lie at about the same steps."""
    num = min(len(record.evaluations) for record in group)
    both = np.array([record.evaluations[:num] for record in group])
    return both[:, :, 0].mean(axis=0), both[:, :, 1]


def _band(group: Group) -> Band:
    steps, returns = _curves(group)
    count = np.full(len(steps), len(group))
    return Band(steps, returns.mean(axis=0), returns.min(axis=0), returns.max(axis=0), count)
