"""Runs agentkit on the device beside another package: one process at a time, in turns, and prints a table of medians.

Both sides compile first, and that is timed apart. A round runs each side once, every other round in reverse order; a
ratio is of runs of the same round. On CPUs rates are of processor time and of time, elsewhere of time.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

Side = Callable[[dict[str, Any]], dict[str, float]]
"""Runs a workload in this process, and returns its `figures`."""


def figures(begun: tuple[float, float], ready: tuple[float, float], steps: int) -> dict[str, float]:
    """Returns what is compared, of a run that ends now.

    Args:
        begun: `clocks` before anything was compiled.
        ready: `clocks` when all was.
        steps: of the environments since then.
    """
    seconds, processor = (now - then for now, then in zip(clocks(), ready, strict=True))
    return {
        "compile_seconds": ready[0] - begun[0],
        "compile_processor": ready[1] - begun[1],
        "per_second": steps / seconds,
        "per_processor_second": steps / processor,
    }


def clocks() -> tuple[float, float]:
    """Returns the time and this process's processor time, in seconds."""
    return time.monotonic(), time.process_time()


def time_agentkit(make_experiment: Callable[[pathlib.Path], Any], untimed_steps: int = 0) -> dict[str, float]:
    """Trains as `agentkit.run` does, whose first chunk compiles, and returns `figures`, and the last return.

    That is of the evaluation at the end, where the experiment has one: then the last chunk, which it follows, is not
    timed. Else it is of the last row of training.

    Args:
        make_experiment: for a run folder.
        untimed_steps: at least so many are taken before the clock starts; on the host updates compile as late as that.
    """
    import agentkit
    import agentkit.losses.library
    from agentkit.experiment.local import started

    with tempfile.TemporaryDirectory() as folder:
        begun = clocks()
        experiment = make_experiment(pathlib.Path(folder) / "run")
        with started(experiment, False) as (training, stop):
            training.begin(stop)
            training.advance(stop)
            while training.work.num_steps < untimed_steps:
                training.advance(stop)
            ready, first = clocks(), training.work.num_steps
            found: dict[str, float] = {}
            while training.goes_on:
                training.advance(stop)
                if training.goes_on or not experiment.evaluation_period:
                    found = figures(begun, ready, training.work.num_steps - first)
        log = "evaluation" if experiment.evaluation_period else "train"
        rows = agentkit.open_run(str(pathlib.Path(folder) / "run")).rows(log)
        return found | {"episode_return": rows[-1]["episode_return"] if rows else float("nan")}


def main(file: str, workloads: Mapping[str, dict[str, Any]], sides: Mapping[str, Side]) -> None:
    """Runs the sides of workloads in turns, and prints each run, and the table in Markdown.

    Args:
        file: the script that calls this, to be started for each run.
        workloads: by name.
        sides: "agentkit" and another, by name.
    """
    other = next(name for name in sides if name != "agentkit")
    parser = argparse.ArgumentParser()
    parser.add_argument("--other-python", default=sys.executable, help=f"the interpreter that has {other}")
    parser.add_argument("--workloads", nargs="+", choices=list(workloads), default=list(workloads))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep-compiled", help="a folder for what JAX compiles: compile times are those of round 1")
    parser.add_argument("--side", choices=list(sides), help="run one side in this process")
    arguments = parser.parse_args()
    if arguments.side is not None:
        print(json.dumps(sides[arguments.side](workloads[arguments.workloads[0]])))
        return
    pythons = {"agentkit": sys.executable, other: arguments.other_python}
    header = ["workload", "agentkit", other, "ratio", "ratio of time", "compiled: agentkit", other, "return", other]
    rows = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name in arguments.workloads:
        runs: dict[str, list[dict[str, float]]] = {"agentkit": [], other: []}
        for number in range(arguments.rounds):
            for side in list(pythons)[:: 1 if number % 2 == 0 else -1]:
                runs[side].append(_run_side(file, side, name, pythons[side], arguments.keep_compiled))
                print(name, side, json.dumps(runs[side][-1]), flush=True)
        rows.append(f"| {name} | {_row(runs)} |")
        print(rows[-1], flush=True)
    print("\n".join(rows))


def _run_side(file: str, side: str, name: str, python: str, cache: str | None) -> dict[str, float]:
    command = [python, file, "--side", side, "--workloads", name]
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ
    if side == "agentkit":
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Else what one run has compiled must not be there for the next one.
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false" if cache is None else "true"
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    read: dict[str, float] = json.loads(found.splitlines()[-1])
    return read


def _row(runs: dict[str, list[dict[str, float]]]) -> str:
    def median(side: str, name: str) -> float:
        return statistics.median(run.get(name, float("nan")) for run in runs[side])

    def ratio(name: str) -> float:
        ours, theirs = runs.values()
        return statistics.median(one[name] / other[name] for one, other in zip(ours, theirs, strict=True))

    on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu"
    rate, compiled = ("per_processor_second", "processor") if on_cpu else ("per_second", "seconds")
    words = [f"{median(side, rate):,.0f}" for side in runs] + [f"{ratio(rate):.2f}", f"{ratio('per_second'):.2f}"]
    words += [f"{max(run[f'compile_{compiled}'] for run in runs[side]):.1f} s" for side in runs]
    return " | ".join([*words, *(f"{median(side, 'episode_return'):,.1f}" for side in runs)])
