"""Trains the offline agents on episodes of other agents' runs and records what they reached in docs/results/offline.md.

    python benchmarks/offline_runs.py --data /tmp/data       # makes the data first: SAC on HalfCheetah, DQN on CartPole
    python benchmarks/offline_runs.py --data /tmp/data --agents iql cql --cores 2 3

Runs and records are as those of `mujoco_runs.py`, with updates where these have steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile

import mujoco_report
from mujoco_runs import DOCS, NUM_EVALUATIONS, Job, Plan, read, run_all

ENVIRONMENTS = {"HalfCheetah": "gymnasium:HalfCheetah-v5", "CartPole": "gymnasium:CartPole-v1"}
# Whose episodes: of the policy that explores, at the end of the run.
SOURCES = {
    "HalfCheetah": ("sac", "--steps", "100000"),
    "CartPole": ("dqn", "--steps", "20000", "--set", "n_step=20", "--set", "discount=0.995"),
}
NUM_EPISODES = 100
PLANS = {name: Plan(30_000, ("HalfCheetah",)) for name in ("bc", "td3_bc", "cql", "iql", "crr")}
PLANS |= {name: Plan(10_000, ("CartPole",)) for name in ("discrete_bcq", "discrete_cql")}

_ABOUT = """# Offline

Made by `benchmarks/offline_runs.py`, which also makes the data: {episodes} episodes of the exploring policy of SAC
after 100,000 steps of HalfCheetah-v5, and of DQN after 20,000 of CartPole-v1. Their mean returns: {data}. "Steps" are
updates. "Last" is the mean of 20 episodes of the last checkpoint, "best" the largest mean over seeds of the evaluations
on the way (10 episodes each, {{num}} in a run). Seconds are of one run pinned to one core, with others beside it.

"""


@dataclasses.dataclass(frozen=True)
class OfflineJob(Job):
    """One training on a file."""

    data: str

    def command(self, out: str) -> list[str]:
        updates = self.plan.num_steps
        words = ["offline", self.agent, "--data", self.data, "--env", ENVIRONMENTS[self.environment]]
        words += ["--updates", str(updates), "--seed", str(self.seed), "--out", out]
        return [*words, "--eval-every", str(updates // NUM_EVALUATIONS), "--checkpoint-every", str(updates)]


def make_data(environment: str, file: pathlib.Path) -> None:
    """Trains the source and writes its episodes."""
    agent, *words = SOURCES[environment]
    agentkit = [sys.executable, "-m", "agentkit.cli"]
    with tempfile.TemporaryDirectory() as out:
        train = ["train", agent, "--env", ENVIRONMENTS[environment], "--seed", "0", "--out", out, *words]
        subprocess.run([*agentkit, *train], check=True)
        (run,) = pathlib.Path(out).iterdir()
        export = ["export", str(run), "--episodes", str(NUM_EPISODES), "--explore", "--out", str(file)]
        subprocess.run([*agentkit, *export], check=True)


def mean_return(file: pathlib.Path) -> str:
    from agentkit.datasets import read_episodes

    episodes = read_episodes(file).episodes
    return f"{sum(float(episode.rewards.sum()) for episode in episodes) / len(episodes):.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the data, made if missing")
    parser.add_argument("--agents", nargs="*", choices=sorted(PLANS), default=sorted(PLANS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--cores", type=int, nargs="*", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=pathlib.Path, default=DOCS / "offline.json")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    files = {environment: options.data / f"{environment}.hdf5" for environment in ENVIRONMENTS}
    for environment, file in files.items():
        if not file.exists():
            make_data(environment, file)
    recorded, jobs = read(options.record), []
    for name in options.agents:
        plan = PLANS[name]
        (environment,) = plan.environments
        jobs += [OfflineJob(name, environment, seed, plan, str(files[environment])) for seed in options.seeds]
    failed = run_all([job for job in jobs if job.name not in recorded], options.cores, options.record)
    data = ", ".join(f"{environment} {mean_return(file)}" for environment, file in files.items())
    about = _ABOUT.format(episodes=NUM_EPISODES, data=data)
    mujoco_report.write(read(options.record), options.record.parent, "offline", about, axis="updates")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
