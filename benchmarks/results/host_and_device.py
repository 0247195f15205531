"""Trains agents in the same environment on the host and on JAX's device, and records the returns of both.

    python benchmarks/results/host_and_device.py --out /tmp/results
    python benchmarks/results/host_and_device.py --out /tmp/results --report docs/results/host_and_device.md

Each run is one `agentkit train` command and one evaluation of its last checkpoint, both pinned to one core. A run that
is complete is not repeated, and one that was cut short is resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from cores import run_on_cores
from learning import EVALUATION_EPISODES, judge

SEEDS = (0, 1, 2)
WHERE = ("host", "device")

INTRODUCTION = f"""\
# On the host and on the device

The same agent, settings and steps, in the same environment on the host and in [the compiled loop](../on_device.md): the
mean return of {EVALUATION_EPISODES} episodes after the training, by the mode of the policy, of {len(SEEDS)} seeds. Both
draw other random numbers, so that what must agree is what is learned, and not the numbers. An episode of the point
mass begins anywhere, so that a mean has a standard error of 0.08.
`python benchmarks/results/host_and_device.py` makes the runs and this page.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One agent in one environment, which has two names where it is not JAX's on the host, too.

    Attributes:
        agent: its name.
        host: the environment on the host.
        device: the same on the device.
        num_envs: as many in both.
        num_steps: likewise.
        settings: of `--set`, likewise.
    """

    agent: str
    host: str
    device: str
    num_envs: int
    num_steps: int
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.agent} on {self.device.partition(':')[2]}"


CARTPOLE = ("gymnasium:CartPole-v1", "jax:cartpole")
VALUES = ("n_step=20", "discount=0.995", "updates_per_step=0.25")
SMALL = ("hidden_sizes=64,64", "batch_size=64", "num_random_steps=1_000")
CASES = (
    Case("dqn", *CARTPOLE, 4, 40_000, VALUES),
    Case("c51", *CARTPOLE, 4, 40_000, (*VALUES, "vmin=0", "vmax=200")),
    Case("sac", "agentkit:point_mass", "jax:point_mass", 4, 8_000, SMALL),
    Case(
        "td3", "agentkit:point_mass", "jax:point_mass", 4, 8_000,
        (*SMALL, "min_replay_size=1_000", "learning_rate=3e-3", "tau=0.02"),
    ),
    Case("ppo", *CARTPOLE, 8, 100_000),
    Case("impala", *CARTPOLE, 8, 200_000),
    Case(
        "r2d2", "agentkit:memory_chain", "jax:memory_chain", 4, 6_000,
        ("hidden_sizes=32", "core_size=32", "sequence_length=12", "sequence_period=6", "burn_in=3", "n_step=3",
         "discount=0.95", "learning_rate=3e-3", "target_update_period=50", "min_replay_size=30"),
    ),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Job:
    """One run."""

    case: Case
    where: str
    seed: int

    def __str__(self) -> str:
        return f"{self.case} {self.where} seed {self.seed}"

    def directory(self, out: pathlib.Path) -> pathlib.Path:
        return out / "host_and_device" / f"{self.case.agent}-{self.where}" / f"seed{self.seed}"

    def command(self, directory: pathlib.Path) -> list[str]:
        if (directory / "config.json").exists():
            return ["train", "--resume", str(directory)]
        case = self.case
        place = ["--env", case.host] if self.where == "host" else ["--env", case.device, "--on-device"]
        settings = [part for setting in case.settings for part in ("--set", setting)]
        counts = ["--num-envs", str(case.num_envs), "--steps", str(case.num_steps), "--seed", str(self.seed)]
        kept = ["--eval-every", str(case.num_steps // 4), "--run-directory", str(directory)]
        return ["train", case.agent, "--preset", "none", *place, *settings, *counts, *kept]


def run_job(job: Job, out: pathlib.Path, prefix: list[str]) -> None:
    """Trains and evaluates, each command after `prefix`; leaves ``result.json`` in the run folder."""
    directory = job.directory(out)
    if (directory / "result.json").exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [*prefix, sys.executable, "-m", "agentkit.cli", *job.command(directory)]
    with open(directory.parent / f"seed{job.seed}.log", "ab") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
        returns = judge(directory, prefix, log)["episode_return"]
    shown = " ".join(["agentkit", *job.command(pathlib.Path("RUN"))])
    (directory / "result.json").write_text(json.dumps({"mean": sum(returns) / len(returns), "command": shown}))
    print(f"{job}: {sum(returns) / len(returns):.2f}", flush=True)


def report(out: pathlib.Path, file: pathlib.Path) -> None:
    """Writes what the runs reached that are complete, and how each was begun."""
    rows = ["| agent, environment | environments | steps | on the host | on the device |", "|---|---|---|---|---|"]
    commands: list[str] = []
    for case in CASES:
        cells = []
        for where in WHERE:
            results = [Job(case, where, seed).directory(out) / "result.json" for seed in SEEDS]
            found = [json.loads(result.read_text()) for result in results if result.exists()]
            cells.append(", ".join(f"{each['mean']:.2f}".removesuffix(".00") for each in found) or "not run")
            commands += [each["command"] for each in found[:1]]
        rows.append(f"| {case} | {case.num_envs} | {case.num_steps:,} | {cells[0]} | {cells[1]} |")
    file.write_text("\n".join([INTRODUCTION, *rows, "", "```bash", *commands, "```"]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the run folders")
    parser.add_argument("--only", nargs="*", default=None, help="names of agents")
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--report", type=pathlib.Path, default=None, help="only write this file")
    arguments = parser.parse_args()
    if arguments.report is not None:
        report(arguments.out, arguments.report)
        return 0
    cases = [case for case in CASES if arguments.only is None or case.agent in arguments.only]
    jobs = [Job(case, where, seed) for seed in SEEDS for case in cases for where in WHERE]
    return 1 if run_on_cores(jobs, arguments.cores, lambda job, prefix: run_job(job, arguments.out, prefix)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
