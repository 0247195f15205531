"""How agentkit's costs grow, each beside the bare operation: a plot for each thing that grows, on log axes.

Run alone on the machine: ``python benchmarks/parts/growth.py`` (6 minutes; with the extra ``reverb`` also by actors).
It writes docs/benchmarks/growth.md, growth.json and growth_*.png; ``--quick`` is a check that all of it runs, and
writes into a folder of yours. Nothing else may run meanwhile: a bend is often another process.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import growth_curves
from growth_curves import Plot

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

REASONS: dict[str, str] = {
    "replay_size": """Random rows cost more as the columns outgrow the caches: the same gather of rows that lie side
by side, in columns of the same size, is flat. Sampling adds a fixed part a call (drawing, counting, the
`SampleInfo`), so it bends less. By priority there is a step of about 20 us a call, 0.08 us an item, at 4,096, at
65,536 and at 1,048,576 items, where the sum tree of fan-out 16 gets one more level (`SumTree.sample` alone, 256 draws
on a busy machine: 29 us at 4,000 items, 48 at 4,200; 59 at 65,000, 78 at 66,000; 93 at 1,040,000, 110 at
1,050,000).""",
    "batch_size": """A call has a fixed part, divided by the batch: hence the slope of -1 on the left. On the right
each row has its own cost, and the curve is level. An update's curve levels off where its products fill the vector
units and all cores. DQN's has a step between 1,024 and 2,048 rows: XLA divides its products among the cores, which at
1,024 costs more than it gives (2.1 us on four cores, 1.3 on one), and pays from 2,048 on (1.0, and 1.05 on one).""",
    "observation_size": """Below some 256 bytes a row costs its call and its cache miss, whatever its size; above, its
bytes. The gather into memory that is mapped already costs the same, so the bend is not page faults of new batches. A
step is level up to some kilobytes, where Python costs more than copying, and then has two copies (the adder's own, as
environments reuse their buffers, and replay's) beside the bare row's one.""",
    "episode_length": """What an episode costs (checks of its first step, its final row, the items over the last n - 1,
... steps, a padded sequence) is divided by its steps: from a hundred steps on it is lost among them.""",
    "actors": """Level to 8 actors: 5 ms of a step are the environment's sleep, and the other 0.8 ms have room on 4
cores. It would rise where actors, replay and learner share cores.""",
}


def measurements(quick: bool, largest: int) -> dict[str, Callable[[], Plot]]:
    """By name, what measures each plot."""
    sizes = [n for n in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if n <= largest]
    number = 30 if quick else 300
    found: dict[str, Callable[[], Plot]] = {
        "replay_size": lambda: growth_curves.replay_size(sizes, number),
        "batch_size": lambda: growth_curves.batch_size([2**k for k in range(5, 13)], number),
        "observation_size": lambda: growth_curves.observation_size(number),
        "episode_length": lambda: growth_curves.episode_length(
            [10, 30, 100, 300, 1_000, 3_000, 10_000], 1_000 if quick else 10_000
        ),
    }
    if importlib.util.find_spec("reverb"):
        found["actors"] = lambda: growth_curves.actors([1, 2] if quick else [1, 2, 4, 8], 2.0 if quick else 8.0)
    return found


def draw(plot: Plot, path: pathlib.Path) -> None:
    """Writes the plot as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, values in plot.curves.items():
        points = [(x, y) for x, y in zip(plot.x, values, strict=True) if y is not None]
        style = "--" if "bare" in name or "sleep" in name else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel=plot.x_label, ylabel=plot.y_label)
    axes.grid(which="both", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def section(plot: Plot) -> str:
    """The plot, its figures and its reasons, as Markdown."""
    names = list(plot.curves)
    rows = [f"| {plot.x_label} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for i, x in enumerate(plot.x):
        cells = [plot.curves[name][i] for name in names]
        rows.append(f"| {x:,.0f} | {' | '.join('' if y is None else f'{y:.3g}' for y in cells)} |")
    title = plot.name.replace("_", " ").capitalize()
    picture = f"![{title}](growth_{plot.name}.png)"
    return "\n".join([f"## {title}", "", picture, "", f"In {plot.y_label}:", "", *rows, "", plot.reasons, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", help="these plots alone")
    parser.add_argument("--largest", type=int, help="replay size; 10 million, with --quick 100,000")
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    options = parser.parse_args()
    if (options.quick or options.only) and options.folder == FOLDER:
        parser.error("--quick and --only need a --folder of their own: docs/benchmarks has the whole measurement.")
    largest = options.largest or (100_000 if options.quick else 10_000_000)
    before, plots = os.getloadavg()[0], []
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, measure in measurements(options.quick, largest).items():
        if options.only and name not in options.only:
            continue
        start = time.monotonic()
        plot = dataclasses.replace(measure(), reasons=REASONS[name])
        draw(plot, options.folder / f"growth_{name}.png")
        print(section(plot), flush=True)
        print(f"({name}: {time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
        plots.append(plot)
    load = f"Load before and after: {before:.1f}, {os.getloadavg()[0]:.1f}."
    header = (
        f"# How costs grow\n\n`python benchmarks/parts/growth.py`; medians of 5 rounds in turns, log axes. {load}\n"
    )
    (options.folder / "growth.md").write_text("\n".join([header, *map(section, plots)]))
    record = [dataclasses.asdict(plot) for plot in plots]
    (options.folder / "growth.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
