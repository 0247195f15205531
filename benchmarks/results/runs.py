"""Trains agents on real environments and records what they reached: docs/results/mujoco.md, cartpole.md, offline.md.

    python benchmarks/results/runs.py mujoco --list      # what there is to run, and what is missing
    python benchmarks/results/runs.py mujoco --agents ppo a2c --environments Hopper --seeds 0
    python benchmarks/results/runs.py cartpole           # what is not recorded yet, one run per core
    python benchmarks/results/runs.py offline --data /tmp/data --agents iql cql    # makes the data first
    python benchmarks/results/runs.py mujoco --report    # only write table and plots again

`plans.py` says what is trained. Each run is one ``agentkit train`` (``offline``), pinned to one core, and an evaluation
of its last checkpoint on 20 episodes. What it reached is added to docs/results/TASK.json, from which table and plots
are made: runs of another day or machine stay. A run that is recorded is not repeated. The text above the table is
written by hand, and stays.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from cores import run_on_cores
from plans import SOURCES, TASKS, Job, environment_name
from report import write

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"
NUM_EPISODES = 20
AGENTKIT = [sys.executable, "-m", "agentkit.cli"]
EVALUATE = (
    "import json, sys, agentkit.experiment as e;"
    f"print(json.dumps(e.evaluate(sys.argv[1], {NUM_EPISODES})['episode_return']))"
)


def jobs_of(task: str, data: pathlib.Path) -> Iterator[Job]:
    """Every run of a task's plans; offline, of the files in `data`."""
    for agent, plan in TASKS[task]:
        for environment in plan.environments:
            file = str(data_file(data, environment)) if task == "offline" else None
            yield from (Job(agent, environment, seed, plan, file) for seed in plan.seeds)


def data_file(data: pathlib.Path, environment: str) -> pathlib.Path:
    """The file of an environment's episodes."""
    return data / f"{environment}.hdf5"


def make_data(environment: str, file: pathlib.Path) -> None:
    """Trains the source of an environment's data and writes its episodes, whose mean return is printed."""
    from agentkit.datasets import read_episodes

    agent, *words = SOURCES[environment]
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as out:
        place = ["--env", environment_name(environment), "--seed", "0", "--out", out]
        subprocess.run([*AGENTKIT, "train", agent, *place, *words], check=True)
        (run,) = pathlib.Path(out).iterdir()
        subprocess.run(
            [*AGENTKIT, "export", str(run), "--episodes", "100", "--explore", "--out", str(file)], check=True
        )
    returns = [float(episode.rewards.sum()) for episode in read_episodes(file).episodes]
    print(f"{file}: mean return {sum(returns) / len(returns):.0f}")


def train(job: Job, prefix: list[str]) -> dict[str, Any]:
    """Trains and evaluates; what is to be recorded."""
    with tempfile.TemporaryDirectory() as out:
        started = time.time()
        with open(pathlib.Path(out) / "log.txt", "wb") as log:
            subprocess.run([*prefix, *AGENTKIT, *job.words(out)], check=True, stdout=log, stderr=log)
        seconds = time.time() - started
        (directory,) = (path for path in pathlib.Path(out).iterdir() if path.is_dir())
        done = subprocess.run(
            [*prefix, sys.executable, "-c", EVALUATE, str(directory)], check=True, stdout=subprocess.PIPE
        )
        returns = json.loads(done.stdout.splitlines()[-1])
        curve = (directory / "logs" / "evaluation.csv").read_text().splitlines()
        versions = json.loads((directory / "config.json").read_text())["versions"]
    columns = curve[0].split(",")
    rows = [dict(zip(columns, row.split(","), strict=True)) for row in curve[1:]]
    return {
        "agent": job.agent,
        "environment": job.environment,
        "seed": job.seed,
        "num_steps": job.plan.num_steps,
        "mean_return": sum(returns) / len(returns),
        "curve": [[int(float(row["steps"])), round(float(row["episode_return"]), 2)] for row in rows],
        "seconds": round(seconds),
        "command": job.command(),
        "versions": versions,
    }


def train_all(jobs: list[Job], cores: list[int], record: pathlib.Path) -> int:
    """Records each run when it ends. Counts the failed."""
    lock = threading.Lock()

    def run(job: Job, prefix: list[str]) -> None:
        found = train(job, prefix)
        with lock:
            add(record, str(job), found)
        print(f"{job}: {found['mean_return']:.1f} in {found['seconds']} s", flush=True)

    return run_on_cores(jobs, cores, run)


def read(record: pathlib.Path) -> dict[str, Any]:
    """The runs that are recorded, by name."""
    return json.loads(record.read_text()) if record.exists() else {}


def add(record: pathlib.Path, name: str, found: dict[str, Any]) -> None:
    """Adds a run to the record."""
    runs = read(record) | {name: found}
    part = record.with_suffix(".part")
    part.write_text(
        json.dumps(dict(sorted(runs.items())), indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n"
    )
    part.replace(record)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--list", action="store_true", help="print the runs, and which are recorded")
    parser.add_argument("--report", action="store_true", help="only write table and plots")
    parser.add_argument("--agents", nargs="*")
    parser.add_argument("--environments", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--steps", nargs="*", type=int, help="only runs of so many steps")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data"), help="folder of the offline data")
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=pathlib.Path, help="docs/results/TASK.json by default; the page is beside it")
    options = parser.parse_args()
    record = options.record or DOCS / f"{options.task}.json"
    chosen = [
        job
        for job in jobs_of(options.task, options.data)
        if (options.agents is None or job.agent in options.agents)
        and (options.environments is None or job.environment in options.environments)
        and (options.seeds is None or job.seed in options.seeds)
        and (options.steps is None or job.plan.num_steps in options.steps)
    ]
    recorded, failed = read(record), 0
    if options.list:
        print("\n".join(f"{'done   ' if str(job) in recorded else 'missing'} {job}" for job in chosen))
        return 0
    if not options.report:
        missing = [job for job in chosen if str(job) not in recorded]
        for environment in {job.environment for job in missing if job.data is not None}:
            if not data_file(options.data, environment).exists():
                make_data(environment, data_file(options.data, environment))
        failed = train_all(missing, options.cores, record)
    write(read(record), record.with_suffix(".md"), axis="updates" if options.task == "offline" else "steps")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
