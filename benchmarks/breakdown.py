"""Where the time of a step of agentkit goes, off-policy with one environment: ``python benchmarks/breakdown.py``.

Alternating runs without and with timers, so that it can be seen what these cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from compare import run_side
from workloads import WORKLOADS, make_job

TIMEOUT = 600.0
PARTS = ("environment", "acting", "adding", "sampling", "update", "rest")
WAYS = ("as it runs", "one at a time")


def break_down(name: str, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of each part, both ways; and how fast the timed runs were beside untimed ones."""
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    parts: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(options.pairs):
        job = make_job(name, "agentkit", variant=variant, seconds=options.window_seconds, seed=seed)
        steps = job["last"] - job["first"]
        plain, _ = run_side(sys.executable, "agentkit_side.py", job, TIMEOUT)
        for way in WAYS:
            timed, lines = run_side(sys.executable, "agentkit_side.py", job | {"parts": way}, TIMEOUT)
            (found,) = [json.loads(line.removeprefix("parts ")) for line in lines if line.startswith("parts ")]
            parts[way].append({part: found.get(part, 0.0) / steps for part in PARTS})
            ratios[way].append(timed["steps_per_second"] / plain["steps_per_second"])
    return {
        "workload": name,
        "variant": variant,
        "parts": {way: {part: statistics.median(row[part] for row in parts[way]) for part in PARTS} for way in WAYS},
        "timed_over_untimed": {way: statistics.median(ratios[way]) for way in WAYS},
    }


def breakdown_markdown(results: Sequence[dict[str, Any]]) -> str:
    """A table for each variant: share of a step's time, and microseconds."""
    lines = [
        "Share of a step's wall time in agentkit, and microseconds; medians of the rounds. Left as it runs:",
        "the device computes while the environment steps, and what is left of the update is waited for in",
        "*acting*. Right with a wait after every update, so that *update* is its whole cost and nothing",
        "overlaps.",
        "",
    ]
    for result in results:
        ratios = ", ".join(f"{result['timed_over_untimed'][way]:.2f} ({way})" for way in WAYS)
        lines += [
            f"## {result['workload']} on {WORKLOADS[result['workload']].environment}, {result['variant']}",
            "",
            f"Speed of the run with timers over the run without: {ratios}.",
            "",
            f"| part | {WAYS[0]} | µs | {WAYS[1]} | µs |",
            "|---|---|---|---|---|",
        ]
        totals = {way: sum(result["parts"][way].values()) for way in WAYS}
        for part in PARTS:
            seconds = [result["parts"][way][part] for way in WAYS]
            cells = [f"{s / totals[way]:.1%} | {s * 1e6:.1f}" for way, s in zip(WAYS, seconds, strict=True)]
            lines.append(f"| {part} | {cells[0]} | {cells[1]} |")
        whole = " | ".join(f"100% | {totals[way] * 1e6:.1f}" for way in WAYS)
        lines += [f"| whole step | {whole} |", ""]
    return "\n".join(lines)


def main() -> None:
    """Prints the tables."""
    names = [name for name, workload in WORKLOADS.items() if workload.num_envs == 1 and name != "dqn-pong"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=names, default=["sac", "dqn"])
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--window-seconds", type=float, default=10.0, help="about how long a run is measured")
    options = parser.parse_args()
    variants = [
        (name, key)
        for name in options.workloads
        for key, variant in WORKLOADS[name].variants.items()
        if variant.replay == "in_process"
    ]
    print(breakdown_markdown([break_down(name, variant, options) for name, variant in variants]))


if __name__ == "__main__":
    main()
