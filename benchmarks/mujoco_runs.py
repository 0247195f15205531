"""Trains agents on MuJoCo and records what they reached in docs/results/mujoco.md, beside published numbers.

    python benchmarks/mujoco_runs.py --list      # what there is to run, and what is missing
    python benchmarks/mujoco_runs.py --agents ppo a2c --environments Hopper --seeds 0
    python benchmarks/mujoco_runs.py --report    # only write table and plots again

Each run is one ``agentkit train``, pinned to one core, and an evaluation of its last checkpoint on 20 episodes. What a
run reached is added to docs/results/mujoco.json, from which table and plots are made: runs of another day or machine
stay. A run that is recorded is not repeated. Environments are EnvPool's v4 for agents that step many at once, and
gymnasium's v5 for the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "results"
RECORD = DOCS / "mujoco.json"
NUM_EVALUATIONS = 20
NUM_EPISODES = 20

ON_POLICY = ("HalfCheetah", "Hopper", "Walker2d", "InvertedDoublePendulum", "Reacher", "Swimmer")
ENVIRONMENTS = (*ON_POLICY, "Ant")

# Maximum average return within 1,000,000 steps: Tianshou (Weng et al. 2021, 2107.14171, table 3).
_COLUMNS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "InvertedDoublePendulum", "Reacher")
_RETURNS = {
    "sac": (12138.8, 3542.2, 5007.0, 5850.2, 9359.5, -2.6),
    "td3": (10201.2, 3472.2, 3982.4, 5116.4, 9349.2, -2.7),
    "ddpg": (11718.7, 2197.0, 1400.6, 990.4, 8364.3, -3.3),
    "ppo": (5783.9, 2609.3, 3588.5, 3258.4, 9231.3, -4.1),
    "a2c": (1829.9, 1253.2, 1091.6, 3485.4, 9257.7, -6.7),
    "trpo": (4471.2, 2046.0, 3826.7, 2866.7, 8435.2, -5.1),
}
PUBLISHED = {agent: dict(zip(_COLUMNS, returns, strict=True)) for agent, returns in _RETURNS.items()}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How an agent is run: steps, environments at once, settings; `version` of the environment, None for MuJoCo's."""

    num_steps: int
    environments: tuple[str, ...]
    num_envs: int | None = None
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    version: int | None = None


_SEGMENTS = ("segment_length=32", "initial_std=0.6")
_A2C = ("initial_std=0.6", "normalize_advantages=True", "entropy_cost=0.0")
# As long at random as in TD3's paper on HalfCheetah: after 1,000 such steps two of three of its seeds stayed near 1,100
# until step 150,000, and on Hopper one stayed near 220.
_LONG_START = ("num_random_steps=10000", "min_replay_size=10000")
PLANS = {
    "ppo": Plan(
        1_000_000,
        ON_POLICY,
        64,
        (*_SEGMENTS, "num_minibatches=32", "learning_rate=linear(5e-4,0,1000000)", "target_kl=0.05"),
    ),
    "trpo": Plan(1_000_000, ON_POLICY, 64, ("segment_length=16", "initial_std=0.6")),
    "a2c": Plan(
        1_000_000, ON_POLICY, 32, (*_A2C, "segment_length=16", "learning_rate=linear(1e-3,0,1000000)", "rms_decay=0.9")
    ),
    "sac": Plan(300_000, ("HalfCheetah",)),
    "td3": Plan(300_000, ("HalfCheetah",), settings=_LONG_START),
}
# MPO learns from 32 samples a step: with 256 a run takes three hours of a core. D4PG's atoms must hold the discounted
# returns: rewards of at most about 5, for 1 / (1 - 0.99) steps.
SHORT_PLANS = {
    name: Plan(200_000, ("Hopper", "Walker2d"), settings=settings, seeds=(0,))
    for name, settings in (
        ("mpo", ("updates_per_step=0.125",)),
        ("d4pg", ("vmin=-50", "vmax=500", "num_atoms=101")),
        ("sac", ()),
        ("td3", _LONG_START),
        ("ddpg", _LONG_START),
    )
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One training."""

    agent: str
    environment: str
    seed: int
    plan: Plan

    @property
    def name(self) -> str:
        return f"{self.agent}/{self.environment}/{self.plan.num_steps}/{self.seed}"

    def command(self, out: str) -> list[str]:
        plan = self.plan
        prefix, version = ("gymnasium", 5) if plan.num_envs is None else ("envpool", 4)
        words = [
            "train",
            self.agent,
            "--preset",
            "none",
            "--env",
            f"{prefix}:{self.environment}-v{plan.version or version}",
        ]
        words += ["--steps", str(plan.num_steps), "--seed", str(self.seed), "--out", out]
        words += ["--eval-every", str(plan.num_steps // NUM_EVALUATIONS), "--checkpoint-every", str(plan.num_steps)]
        if plan.num_envs is not None:
            words += ["--num-envs", str(plan.num_envs)]
        return words + [word for setting in plan.settings for word in ("--set", setting)]


def all_jobs() -> list[Job]:
    """Every run of the plans."""
    return [
        Job(agent, environment, seed, plan)
        for plans in (PLANS, SHORT_PLANS)
        for agent, plan in plans.items()
        for environment in plan.environments
        for seed in plan.seeds
    ]


def train(job: Job, prefix: list[str]) -> dict[str, Any]:
    """Trains and evaluates; what is to be recorded."""
    with tempfile.TemporaryDirectory() as out:
        agentkit = [*prefix, sys.executable, "-m", "agentkit.cli"]
        started = time.time()
        with open(pathlib.Path(out) / "log.txt", "wb") as log:
            subprocess.run([*agentkit, *job.command(out)], check=True, stdout=log, stderr=log)
        seconds = time.time() - started
        (directory,) = (path for path in pathlib.Path(out).iterdir() if path.is_dir())
        script = (
            "import json, sys, agentkit.experiment as e;"
            f"print(json.dumps(e.evaluate(sys.argv[1], {NUM_EPISODES})['episode_return']))"
        )
        done = subprocess.run(
            [*prefix, sys.executable, "-c", script, str(directory)], check=True, stdout=subprocess.PIPE
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
        "command": "agentkit " + shlex.join(job.command("runs")),
        "versions": versions,
    }


def run_all(jobs: list[Job], cores: list[int], record: pathlib.Path) -> int:
    """One run at a time on each core; each is recorded when it ends. Counts the failed."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock, failures = threading.Lock(), []

    def work(core: int) -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                found = train(job, ["taskset", "-c", str(core)])
            except subprocess.CalledProcessError as error:
                failures.append(f"{job.name}: {error}")
                continue
            with lock:
                add(record, job.name, found)
            print(f"{job.name}: {found['mean_return']:.1f} in {found['seconds']} s", flush=True)

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(failures))
    return len(failures)


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
    parser.add_argument("--list", action="store_true", help="print the runs, and which are recorded")
    parser.add_argument("--report", action="store_true", help="only write table and plots")
    parser.add_argument("--agents", nargs="*", choices=sorted({*PLANS, *SHORT_PLANS}))
    parser.add_argument("--environments", nargs="*", choices=ENVIRONMENTS)
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--steps", nargs="*", type=int, help="only runs of so many steps")
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=pathlib.Path, default=RECORD)
    options = parser.parse_args()
    chosen = [
        job
        for job in all_jobs()
        if (options.agents is None or job.agent in options.agents)
        and (options.environments is None or job.environment in options.environments)
        and (options.seeds is None or job.seed in options.seeds)
        and (options.steps is None or job.plan.num_steps in options.steps)
    ]
    recorded = read(options.record)
    if options.list:
        print("\n".join(f"{'done   ' if job.name in recorded else 'missing'} {job.name}" for job in chosen))
        return 0
    failed = (
        0 if options.report else run_all([j for j in chosen if j.name not in recorded], options.cores, options.record)
    )
    import mujoco_report

    mujoco_report.write(read(options.record), options.record.parent)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
