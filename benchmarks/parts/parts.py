"""What agentkit's parts cost by themselves, each beside the bare operation: ratios, in turns, in one run.

Run alone on the machine, with the extra ``gymnasium``: ``python benchmarks/parts/parts.py`` (8 minutes). It writes
docs/benchmarks/parts.md and parts.json; ``--quick`` is a minute's check that all of it runs, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from learner import busy_lines, learner_lines
from loop import adder_lines, loop_lines
from sampling import sampling_lines
from storage import checkpoint_lines, memory_lines, parameter_lines
from turns import ROUNDS, Line, plain, table

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

HEADER = """# The parts by themselves

`python benchmarks/parts/parts.py`: {rounds} rounds (5 for checkpoints), contestants in turns, every other one
backwards; the median of the rounds' ratios, with the least and the greatest. Below 1: less time than what it is beside.
Absolute figures are medians of the same rounds and mean nothing on another machine, or on a busy one.

{machine}. Load before and after: {before:.1f}, {after:.1f}.
"""


def parts(quick: bool) -> dict[str, Callable[[], list[Line]]]:
    """By name, what measures them."""
    sizes = (10_000, 100_000) if quick else (100_000, 1_000_000)
    return {
        "loop": lambda: loop_lines(1_000 if quick else 8_000),
        "adders": lambda: adder_lines(400 if quick else 8_000),
        "sampling": lambda: sampling_lines(sizes, 20 if quick else 300),
        "learner": lambda: learner_lines(0.02 if quick else 0.7),
        "busy": lambda: busy_lines(0.05 if quick else 1.5),
        "parameters": lambda: parameter_lines(seconds=0.01 if quick else 0.1),
        "checkpoints": lambda: checkpoint_lines((10_000,) if quick else (10_000, 100_000, 1_000_000)),
        "memory": lambda: memory_lines(sizes[-1], 1_000 if quick else 20_000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(parts(True)), help="these alone; writes nothing")
    options = parser.parse_args()
    before, found = os.getloadavg()[0], []
    for name, measure in parts(options.quick).items():
        if options.only and name not in options.only:
            continue
        start = time.monotonic()
        lines = measure()
        print(table(lines), flush=True)
        print(f"({name}: {time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
        found += lines
    missed = [x.what for x in found if x.within is False]
    print(f"{len(missed)} limits missed: {missed}")
    if options.quick or options.only:
        return
    versions = {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__}
    machine = f"{os.cpu_count()} cores, {', '.join(f'{name} {x}' for name, x in versions.items())}"
    after = os.getloadavg()[0]
    FOLDER.mkdir(parents=True, exist_ok=True)
    header = HEADER.format(rounds=ROUNDS, machine=machine, before=before, after=after)
    (FOLDER / "parts.md").write_text(f"{header}\n{table(found)}")
    record = {"versions": versions, "load": [before, after], "lines": plain(found)}
    (FOLDER / "parts.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
