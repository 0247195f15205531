"""Trains the agents on real environments and records what they reached in docs/results.

    python benchmarks/learning.py --out /tmp/results            # everything, one process per core
    python benchmarks/learning.py --out /tmp/results --only sac-halfcheetah
    python benchmarks/learning.py --out /tmp/results --report docs/results

Each run is one `agentkit train` command, pinned to one core, and then one `agentkit evaluate` of its last
checkpoint. A run that is complete is not repeated, and one that was cut short is resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import threading
import time

EVALUATION_EPISODES = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the results: an agent, an environment, and what is expected."""

    name: str
    agent: str
    environment: str
    num_steps: int
    expected: float | None
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    replays: tuple[str, ...] = ("in_process", "reverb")
    paper: str = ""


CASES = (
    Case(
        "dqn-cartpole",
        "dqn",
        "gymnasium:CartPole-v1",
        50_000,
        475,
        ("n_step=20", "discount=0.995"),
        paper="500 is the maximum",
    ),
    Case("sac-pendulum", "sac", "gymnasium:Pendulum-v1", 20_000, -200, paper="about -150 is optimal"),
    Case(
        "sac-inverted-pendulum",
        "sac",
        "gymnasium:InvertedPendulum-v5",
        20_000,
        950,
        paper="1000 is the maximum",
    ),
    Case(
        "sac-halfcheetah",
        "sac",
        "gymnasium:HalfCheetah-v5",
        100_000,
        3_000,
        paper="no number at 100,000 steps in the paper, which plots curves over millions (HalfCheetah-v2)",
    ),
    Case(
        "sac-cheetah-run",
        "sac",
        "dm_control:cheetah/run",
        50_000,
        None,
        seeds=(0,),
        replays=("in_process",),
        paper="1000 is the maximum; no action repeat",
    ),
    Case(
        "dqn-bsuite-catch",
        "dqn",
        "bsuite:catch/0",
        20_000,
        0.9,
        seeds=(0,),
        replays=("in_process",),
        paper="1 is the maximum",
    ),
)


@dataclasses.dataclass(frozen=True)
class Job:
    """One training run of a case."""

    case: Case
    replay: str
    seed: int

    def directory(self, out: pathlib.Path) -> pathlib.Path:
        environment = re.sub(r"[^A-Za-z0-9._-]+", "_", self.case.environment)  # as `agentkit train` names it
        return out / f"{self.case.name}-{self.replay}" / f"{self.case.agent}-{environment}-seed{self.seed}"

    def command(self, out: pathlib.Path) -> list[str]:
        directory = self.directory(out)
        if (directory / "config.json").exists():
            return ["train", "--resume", str(directory)]
        case = self.case
        settings = [part for setting in case.settings for part in ("--set", setting)]
        return [
            *("train", case.agent, "--env", case.environment, "--steps", str(case.num_steps)),
            *("--seed", str(self.seed), "--replay", self.replay, "--out", str(directory.parent)),
            *("--eval-every", str(case.num_steps // 10), "--checkpoint-every", str(case.num_steps // 5)),
            *settings,
        ]


def run_job(job: Job, out: pathlib.Path, core: int) -> None:
    """Trains and evaluates, pinned to a core; leaves ``result.json`` in the run folder."""
    directory = job.directory(out)
    result = directory / "result.json"
    if result.exists():
        return
    command = job.command(out)
    # The pin gives each run the same share of the machine: XLA sizes its thread pool by it.
    prefix = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    agentkit = [*prefix, sys.executable, "-m", "agentkit.cli"]
    started = time.time()
    directory.parent.mkdir(exist_ok=True)
    with open(out / f"{directory.parent.name}-{job.seed}.log", "ab") as log:
        subprocess.run([*agentkit, *command], check=True, stdout=log, stderr=log)
        seconds = time.time() - started
        script = (
            "import json, sys, agentkit.experiment as e;"
            f"print(json.dumps(e.evaluate(sys.argv[1], {EVALUATION_EPISODES})))"
        )
        done = subprocess.run(
            [*prefix, sys.executable, "-c", script, str(directory)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    values = json.loads(done.stdout.splitlines()[-1])
    values |= {"seconds": seconds, "command": "agentkit " + " ".join(command)}
    result.write_text(json.dumps(values))
    mean = sum(values["episode_return"]) / EVALUATION_EPISODES
    print(
        f"{directory.parent.name} seed {job.seed}: {mean:.1f} (expected {job.case.expected}) in {seconds:.0f} s",
        flush=True,
    )


def run_all(jobs: list[Job], out: pathlib.Path, cores: list[int]) -> int:
    """Runs the jobs, one at a time on each core; the number that failed."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    failures: list[str] = []

    def work(core: int) -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                run_job(job, out, core)
            except subprocess.CalledProcessError as error:
                failures.append(f"{job.case.name} {job.replay} {job.seed}: {error}; see its log")

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(failures))
    return len(failures)


def report(out: pathlib.Path, docs: pathlib.Path) -> None:
    """Writes the table, and one plot of returns for each case and replay."""
    docs.mkdir(parents=True, exist_ok=True)
    rows = [
        "| case | replay | seed | steps | mean return of 20 episodes | expected | reached | reference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    commands = []
    for case in CASES:
        for replay in case.replays:
            runs = []
            for seed in case.seeds:
                job = Job(case, replay, seed)
                path = job.directory(out) / "result.json"
                if not path.exists():
                    rows.append(
                        f"| {case.name} | {replay} | {seed} | | not run | {case.expected} | no | {case.paper} |"
                    )
                    continue
                values = json.loads(path.read_text())
                mean = sum(values["episode_return"]) / len(values["episode_return"])
                reached = "" if case.expected is None else "yes" if mean >= case.expected else "NO"
                rows.append(
                    f"| {case.name} | {replay} | {seed} | {values['steps']:,} | {mean:.1f} | {case.expected} "
                    f"| {reached} | {case.paper} |"
                )
                commands.append(values["command"])
                runs.append(str(job.directory(out)))
            if runs:
                image = docs / f"{case.name}-{replay}.png"
                subprocess.run([sys.executable, "-m", "agentkit.cli", "plot", *runs, "-o", str(image)], check=True)
    (docs / "table.md").write_text("\n".join(rows) + "\n\n```\n" + "\n".join(commands) + "\n```\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the run folders")
    parser.add_argument("--only", nargs="*", default=None, help="names of cases")
    parser.add_argument("--replay", nargs="*", default=["in_process"], choices=["in_process", "reverb"])
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--report", type=pathlib.Path, default=None, help="only write the report here")
    arguments = parser.parse_args()
    if arguments.report is not None:
        report(arguments.out, arguments.report)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if arguments.only is None or case.name in arguments.only]
    jobs = [
        Job(case, replay, seed)
        for case in chosen
        for replay in case.replays
        if replay in arguments.replay
        for seed in case.seeds
    ]
    return 1 if run_all(jobs, arguments.out, arguments.cores) else 0


if __name__ == "__main__":
    raise SystemExit(main())
