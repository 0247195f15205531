"""Draws the pictures of ``agentkit plot`` and ``agentkit compare``, in one style, for a page or a screen."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.cli.drawing.curves import EVALUATION, TRAINING, Band
from agentkit.errors import ConfigError
from agentkit.experiment.evaluation.aggregates import Estimate
from agentkit.files import refusing_unwritable

# Okabe and Ito's colours, which people who see colours otherwise can tell apart; yellow is too light for lines.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")  # One for each time that the colours begin anew.
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,  # Text that stays text, as publishers ask.
    "svg.fonttype": "none",
    "xtick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.color": "#444444",
    "ytick.labelsize": 8,
}
_AXIS_TITLES = {
    "time": "time (minutes)",
    "updates": "updates",
    "episodes": "episodes",
}
_BAND_NAMES = {"ci": "95 % bootstrap interval", "std": "± 1 standard deviation", "range": "least to greatest"}
_PANEL = (4.2, 2.9)  # Inches.
_MOST_COLUMNS = 3


def draw_curves(
    lines: Mapping[str, Mapping[str, Mapping[str, Band]]], output: Path, *, axis: str, steps: Mapping[str, str],
    middle: str, band: str,
) -> None:  # fmt: skip
    """Draws a panel for each environment, and a line for each group of runs.

    Evaluation is solid, and training faint, where there is both; a metric that is alone is solid, too.

    Args:
        lines: of `plot.make_lines`.
        output: the file, whose suffix says of which kind.
        axis: one of `curves.AXES`.
        steps: what steps are in each environment, see `curves.steps_title`.
        middle: what lines are, for the page: "mean" or "IQM".
        band: ci, std or range.

    Raises:
        ConfigError: the picture cannot be written there.
    """
    import matplotlib

    labels = list(dict.fromkeys(label for groups in lines.values() for label in groups))
    metrics = {metric for groups in lines.values() for found in groups.values() for metric in found}
    drawn = [line for groups in lines.values() for found in groups.values() for line in found.values()]
    notes = [f"{middle} and {_BAND_NAMES[band]} over runs"] if any((line.num_runs > 1).any() for line in drawn) else []
    notes += ["solid: evaluation, faint: training"] if len(metrics) > 1 else []
    notes += ["training"] if metrics == {TRAINING} else []
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels(len(lines), labels)
        handles: dict[str, Any] = {}
        for panel, (environment, groups) in zip(panels, lines.items(), strict=True):
            for label, found in groups.items():
                handles[label] = _draw_group(
                    panel,
                    found,
                    labels.index(label),
                    axis,
                    faint={TRAINING} if len(metrics) > 1 else (),
                )
            panel.set(title=environment, xlabel=_AXIS_TITLES.get(axis, steps[environment]), ylabel=_title(metrics))
            panel.xaxis.set_major_formatter(_short_numbers)
            panel.yaxis.set_major_formatter(_short_numbers)
            panel.margins(x=0.02)
        figure.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=_columns(figure.get_size_inches()[0], labels),
            title="; ".join(notes) or None,
            title_fontproperties={"size": 7.5},
        )
        _save(figure, output)


def draw_comparison(
    estimates: Mapping[str, Mapping[str, Estimate]],
    profiles: Mapping[str, Estimate],
    thresholds: np.ndarray,
    title: str,
    output: Path,
) -> None:
    """Draws each group's aggregates with their intervals, and the groups' performance profiles.

    Args:
        estimates: by aggregate and group.
        profiles: by group, the share of runs above each threshold.
        thresholds: scores ``[K]``.
        title: what a score is.
        output: the file, whose suffix says of which kind.

    Raises:
        ConfigError: the picture cannot be written there.
    """
    import matplotlib
    from matplotlib.figure import Figure

    groups = sorted(profiles, key=lambda group: -float(estimates["IQM"][group].value))
    colors = {group: _COLORS[i % len(_COLORS)] for i, group in enumerate(groups)}
    with matplotlib.rc_context(_STYLE):
        height = max(2.6, 0.32 * len(groups) + 1.3)
        figure = Figure(figsize=(2.1 * len(estimates) + 3.6, height), layout="constrained")
        axes = figure.subplots(1, len(estimates) + 1, width_ratios=[1.0] * len(estimates) + [1.7])
        for panel, (name, found) in zip(axes[:-1], estimates.items(), strict=True):
            for place, group in enumerate(groups):
                value, low, high = (float(number) for number in found[group])
                panel.barh(place, max(high - low, 1e-12), left=low, height=0.5, color=colors[group], alpha=0.35)
                panel.plot([value, value], [place - 0.25, place + 0.25], color=colors[group], linewidth=2)
            panel.set(title=name, yticks=range(len(groups)), ylim=(len(groups) - 0.5, -0.5))
            panel.set_yticklabels(groups if panel is axes[0] else [])
            panel.use_sticky_edges = False
            panel.margins(x=0.1)
            panel.xaxis.set_major_formatter(_short_numbers)
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
            panel.locator_params(axis="x", nbins=4)
        alike = [panel for name, panel in zip(estimates, axes[:-1], strict=True) if name != "optimality gap"]
        ends = [panel.get_xlim() for panel in alike]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        room = 0.0 if high - low > 1e-9 * abs(high) else 0.1 * abs(high) or 1.0  # One run has an interval of no width.
        for panel in alike:
            panel.set_xlim(low - room, high + room)
        for label, group in zip(axes[0].get_yticklabels(), groups, strict=True):
            label.set_color(colors[group])
        for group, profile in profiles.items():
            axes[-1].plot(thresholds, profile.value, color=colors[group], linewidth=1.6, label=group)
            axes[-1].fill_between(thresholds, profile.low, profile.high, color=colors[group], alpha=0.18, linewidth=0)
        axes[-1].set(title="performance profile", ylabel="share of runs above", xlabel="score", ylim=(-0.03, 1.03))
        axes[-1].xaxis.set_major_formatter(_short_numbers)
        axes[-1].locator_params(axis="x", nbins=5)
        figure.supxlabel(f"{title}; bars and bands: 95 % stratified bootstrap", fontsize=7.5, color="#555555")
        _save(figure, output)


def _draw_group(panel: Any, found: Mapping[str, Band], number: int, axis: str, faint: Collection[str]) -> Any:
    """Draws the lines of group number so and so; returns the one that the legend shows."""
    color, dash = _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
    shown = None
    for metric, line in found.items():
        points = line.points / 60.0 if axis == "time" else line.points
        width, alpha = (0.9, 0.4) if metric in faint else (1.6, 1.0)
        (drawn,) = panel.plot(points, line.middle, color=color, linestyle=dash, linewidth=width, alpha=alpha)
        if len(points) == 1:
            drawn.set_marker("o")
        if metric not in faint:
            panel.fill_between(points, line.low, line.high, color=color, alpha=0.18, linewidth=0)
        if metric not in faint or shown is None:
            shown = drawn
    return shown


def _panels(number: int, labels: Sequence[str]) -> tuple[Any, list[Any]]:
    """Makes a figure with so many panels, and room below them for a legend of these labels."""
    from matplotlib.figure import Figure  # Not pyplot: no window, no global state.

    columns = min(number, _MOST_COLUMNS)
    rows = -(-number // columns)
    width = _PANEL[0] * columns
    legend = 0.17 * -(-len(labels) // _columns(width, labels)) + 0.3
    figure = Figure(figsize=(width, _PANEL[1] * rows + legend), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[number:]:
        unused.remove()
    return figure, panels[:number]


def _columns(width: float, labels: Sequence[str]) -> int:
    """Returns the columns of a legend in a figure of so many inches."""
    return max(1, min(len(labels), math.floor(width * 12.0 / (max(map(len, labels)) + 6))))


def _title(metrics: set[str]) -> str:
    if metrics <= {EVALUATION, TRAINING}:
        return "episode return"
    (metric,) = metrics
    return metric.replace("_", " ")


def _short_numbers(value: float, position: int) -> str:
    """Returns a tick's label: 20k, 1.5M."""
    del position
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _save(figure: Any, output: Path) -> None:
    with refusing_unwritable(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(output, dpi=200)
        except ValueError as error:  # There is no such format.
            raise ConfigError(f"Cannot write the picture {str(output)!r}: {error}") from error
