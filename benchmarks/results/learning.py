"""Trains the agents on real environments and records what they reached in docs/results.

    python benchmarks/results/learning.py --out /tmp/results            # everything, one process per core
    python benchmarks/results/learning.py --out /tmp/results --only sac-halfcheetah
    python benchmarks/results/learning.py --out /tmp/results --report docs/results

    python benchmarks/results/learning.py --out /tmp/results --mode processes_served ray_served by_hand_served

Each run is one `agentkit train` command, pinned to one core, or one `agentkit launch` with two actors on all cores,
or one `agentkit node` for each process, and then one evaluation of its last checkpoint. A run that is complete is not
repeated, and one that was cut short is resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import IO

from cores import run_on_cores

EVALUATION_EPISODES = 20

LAUNCHED = ("processes", "ray", "by_hand", "processes_served", "ray_served", "by_hand_served")
"""Two engines of `agentkit launch`, and `agentkit node` by hand, on Reverb or on agentkit's own replay, served."""

MODES = ("in_process", "reverb", *LAUNCHED)
"""The first two are replays of `agentkit train`."""

NUM_ACTORS = 2


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
    modes: tuple[str, ...] = ("in_process", "reverb")
    paper: str = ""


CASES = (
    Case(
        "dqn-cartpole",
        "dqn",
        "gymnasium:CartPole-v1",
        50_000,
        475,
        ("n_step=20", "discount=0.995"),
        modes=MODES,
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
        "sac-halfcheetah-40k",
        "sac",
        "gymnasium:HalfCheetah-v5",
        40_000,
        2_000,
        modes=("in_process", *LAUNCHED),
        paper="one process on Reverb, at 40,000 of its 100,000 steps: 2438, 3073, 3375",
    ),
    Case(
        "sac-cheetah-run",
        "sac",
        "dm_control:cheetah/run",
        50_000,
        None,
        seeds=(0,),
        modes=("in_process",),
        paper="1000 is the maximum; no action repeat",
    ),
    Case(
        "dqn-bsuite-catch",
        "dqn",
        "bsuite:catch/0",
        20_000,
        0.9,
        seeds=(0,),
        modes=("in_process",),
        paper="1 is the maximum",
    ),
)


@dataclasses.dataclass(frozen=True)
class Job:
    """One training run of a case."""

    case: Case
    mode: str
    seed: int

    def __str__(self) -> str:
        return f"{self.case.name} {self.mode} {self.seed}"

    def directory(self, out: pathlib.Path) -> pathlib.Path:
        environment = re.sub(r"[^A-Za-z0-9._-]+", "_", self.case.environment)  # as `agentkit train` names it
        return out / f"{self.case.name}-{self.mode}" / f"{self.case.agent}-{environment}-seed{self.seed}"

    def commands(self, out: pathlib.Path) -> list[list[str]]:
        """What to run, all at the same time; the first ends last."""
        directory, case = self.directory(out), self.case
        plan = [
            *(
                case.agent,
                "--preset",
                "none",
                "--env",
                case.environment,
                "--steps",
                str(case.num_steps),
                "--seed",
                str(self.seed),
            ),
            *("--eval-every", str(case.num_steps // 10), "--checkpoint-every", str(case.num_steps // 5)),
            *(part for setting in case.settings for part in ("--set", setting)),
        ]
        place = ["--out", str(directory.parent)]
        launcher = self.mode.removesuffix("_served")
        replay = "served" if self.mode.endswith("_served") else "reverb"
        if launcher == "by_hand":
            meeting = ["--run-id-file", str(directory / "board.json")]
            nodes = [["evaluator"], *(["actor", "--index", str(index)] for index in range(NUM_ACTORS))]
            host = ["node", "replay", *plan, "--run", str(directory), "--replay", replay]
            return [host, ["node", "learner", *meeting], *(["node", *node, *meeting] for node in nodes)]
        started = (directory / "config.json").exists()
        if self.mode in LAUNCHED:
            how = ["--engine", launcher, "--actors", str(NUM_ACTORS), "--replay", replay]
            return [["launch", "--resume", str(directory)] if started else ["launch", *plan, *place, *how]]
        return [["train", "--resume", str(directory)] if started else ["train", *plan, *place, "--replay", self.mode]]


def run_job(job: Job, out: pathlib.Path, prefix: list[str]) -> None:
    """Trains and evaluates, each command after `prefix`; leaves ``result.json`` in the run folder."""
    directory = job.directory(out)
    result = directory / "result.json"
    if result.exists():
        return
    commands = job.commands(out)
    agentkit = [*prefix, sys.executable, "-m", "agentkit.cli"]
    started = time.time()
    directory.parent.mkdir(exist_ok=True)
    with open(out / f"{directory.parent.name}-{job.seed}.log", "ab") as log:
        train([[*agentkit, *command] for command in commands], directory, log)
        seconds = time.time() - started
        values = judge(directory, prefix, log)
    values |= {"seconds": seconds, "command": " & ".join("agentkit " + " ".join(command) for command in commands)}
    result.write_text(json.dumps(values))
    mean = sum(values["episode_return"]) / EVALUATION_EPISODES
    print(
        f"{directory.parent.name} seed {job.seed}: {mean:.1f} (expected {job.case.expected}) in {seconds:.0f} s",
        flush=True,
    )


def judge(directory: pathlib.Path, prefix: list[str], log: IO[bytes]) -> dict:
    """Returns what `evaluate` says of a run's last checkpoint, in a process of its own after `prefix`."""
    script = (
        f"import json, sys, agentkit.experiment as e;print(json.dumps(e.evaluate(sys.argv[1], {EVALUATION_EPISODES})))"
    )
    command = [*prefix, sys.executable, "-c", script, str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=log)
    return json.loads(done.stdout.splitlines()[-1])


def train(commands: list[list[str]], directory: pathlib.Path, log: IO[bytes]) -> None:
    """Runs the first command to its end, and the others, which join its run, beside it."""
    host = subprocess.Popen(commands[0], stdout=log, stderr=log)
    try:
        while len(commands) > 1 and not (directory / "board.json").exists() and host.poll() is None:
            time.sleep(0.2)
        nodes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands[1:]]
        codes = [process.wait() for process in (*nodes, host)]
    finally:
        host.kill()
    if any(codes):
        raise subprocess.CalledProcessError(max(codes), commands[0])


def run_all(jobs: list[Job], out: pathlib.Path, cores: list[int]) -> int:
    """Runs the launched jobs one after the other, then the others, one at a time on each core; counts the failed."""
    alone = [job for job in jobs if job.mode not in LAUNCHED]
    failed = 0
    for job in jobs:
        if job not in alone:
            try:
                run_job(job, out, [])
            except subprocess.CalledProcessError as error:
                print(f"{job}: {error}; see its log")
                failed += 1
    return failed + run_on_cores(alone, cores, lambda job, prefix: run_job(job, out, prefix))


def report(out: pathlib.Path, docs: pathlib.Path) -> None:
    """Writes the table, and one plot of returns for each case and mode; keeps what it says of runs that `out` lacks."""
    docs.mkdir(parents=True, exist_ok=True)
    table = docs / "table.md"
    before = table.read_text().splitlines() if table.exists() else []
    rows = [
        "| case | mode | seed | steps | mean return of 20 episodes | expected | reached | reference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    commands = [line for line in before if line.startswith("agentkit ")]
    for case in CASES:
        for mode in case.modes:
            jobs = [Job(case, mode, seed) for seed in case.seeds]
            done = [job for job in jobs if (job.directory(out) / "result.json").exists()]
            for job in jobs:
                if job in done:
                    values = json.loads((job.directory(out) / "result.json").read_text())
                    rows.append(row_of(job, values))
                    commands.append(values["command"])
                else:
                    missing = f"{start_of_row(job)} | not run | {case.expected} | no | {case.paper} |"
                    rows.append(next((row for row in before if row.startswith(start_of_row(job))), missing))
            if done:
                image = docs / f"{case.name}-{mode}.png"
                folders = [str(job.directory(out)) for job in done]
                subprocess.run([sys.executable, "-m", "agentkit.cli", "plot", *folders, "-o", str(image)], check=True)
    table.write_text("\n".join(rows) + "\n\n```\n" + "\n".join(dict.fromkeys(commands)) + "\n```\n")


def start_of_row(job: Job) -> str:
    return f"| {job.case.name} | {job.mode} | {job.seed} |"


def row_of(job: Job, values: dict) -> str:
    mean = sum(values["episode_return"]) / len(values["episode_return"])
    expected = job.case.expected
    reached = "" if expected is None else "yes" if mean >= expected else "NO"
    return f"{start_of_row(job)} {values['steps']:,} | {mean:.1f} | {expected} | {reached} | {job.case.paper} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the run folders")
    parser.add_argument("--only", nargs="*", default=None, help="names of cases")
    parser.add_argument("--mode", nargs="*", default=["in_process"], choices=MODES)
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--report", type=pathlib.Path, default=None, help="only write the report here")
    arguments = parser.parse_args()
    if arguments.report is not None:
        report(arguments.out, arguments.report)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if arguments.only is None or case.name in arguments.only]
    jobs = [
        Job(case, mode, seed) for case in chosen for mode in case.modes if mode in arguments.mode for seed in case.seeds
    ]
    return 1 if run_all(jobs, arguments.out, arguments.cores) else 0


if __name__ == "__main__":
    raise SystemExit(main())
