"""Kills trainings in one process at random instants, resumes them, and compares them with trainings left alone.

    nice -n 10 python benchmarks/faults/kills.py --kills 100 --out /tmp/kills

Each case is trained once in peace. Then it is trained again, is killed (SIGKILL) at a random instant of each life, from
its first import to its last checkpoint, and is resumed, until it ends by itself; and again, until the case has had its
share of the kills. All arrays and files of the last checkpoint must be equal to the bit, and all columns of the logs
but the times. Prints one JSON object; ends with 1 if anything differs. Needs the extra ``gymnasium``.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from agentkit import checkpoint

CASES = {
    "dqn": "dqn --env gymnasium:CartPole-v1 --steps 8000 --set prioritized=true --set n_step=3",
    "dqn-4": "dqn --env agentkit:catch --num-envs 4 --steps 6000 --set hidden_sizes=32",
    "rainbow": "rainbow --env agentkit:catch --steps 3000 --set hidden_sizes=32 --set min_replay_size=200",
    "sac": "sac --env gymnasium:Pendulum-v1 --steps 2500 --set hidden_sizes=32,32 --set batch_size=32",
    "sac-2": "sac --env gymnasium:Pendulum-v1 --num-envs 2 --steps 2500 --set hidden_sizes=32,32 --set batch_size=32",
    "td3": "td3 --env gymnasium:Pendulum-v1 --steps 2500 --set hidden_sizes=32,32 --set batch_size=32",
    "ppo": "ppo --env gymnasium:CartPole-v1 --steps 20000",
    "ppo-workers": "ppo --env gymnasium:CartPole-v1 --num-envs 4 --workers 2 --steps 20000",
    "r2d2": "r2d2 --env agentkit:memory_chain --steps 2000 --set core_size=16",
    "impala": "impala --env agentkit:catch --num-envs 4 --steps 12000 --set hidden_sizes=32",
}
EVERY = ("--preset", "none", "--seed", "3", "--checkpoint-every", "200", "--eval-every", "1000", "--eval-episodes", "1")
TIMES = ("seconds", "steps_per_second", "updates_per_second", "time")


def train(case: str, folder: pathlib.Path) -> subprocess.Popen[bytes]:
    """Starts the training, or resumes it where it has begun."""
    words = ["--resume", str(folder)] if (folder / "config.json").exists() else [*CASES[case].split(), *EVERY]
    out = [] if words[0] == "--resume" else ["--out", str(folder.parent)]
    command = [sys.executable, "-m", "agentkit.cli", "train", *words, *out]
    with open(folder.parent / "terminal.txt", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run_folder(case: str, out: pathlib.Path) -> pathlib.Path:
    """Returns the folder that `agentkit train` makes for the case."""
    words = CASES[case].split()
    return out / f"{words[0]}-{words[2].replace(':', '_')}-seed3"


def train_with_kills(case: str, out: pathlib.Path, kills: int, life: float, chance: random.Random) -> list[int]:
    """Trains with so many kills; returns the newest checkpoint's step at each."""
    folder, steps = run_folder(case, out), []
    while len(steps) < kills:
        process = train(case, folder)
        try:
            if process.wait(timeout=chance.uniform(0.0, life)) == 0:
                return steps  # It ended before its last kill.
            raise SystemExit(f"{case} failed: see {out / 'terminal.txt'}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        found = checkpoint.read_latest(folder / "checkpoints") if (folder / "checkpoints").is_dir() else None
        steps.append(0 if found is None else found.step)
    if train(case, folder).wait() != 0:
        raise SystemExit(f"{case} failed: see {out / 'terminal.txt'}")
    return steps


def contents(folder: pathlib.Path) -> dict[str, Any]:
    """Returns each array and file of the newest checkpoint, and each column of the logs that holds no time."""
    newest = checkpoint.read_latest(folder / "checkpoints")
    assert newest is not None
    found: dict[str, Any] = {"step": newest.step}
    for path in sorted(p for p in newest.path.rglob("*") if p.is_file() and p.name != "manifest.json"):
        name = str(path.relative_to(newest.path))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found |= {f"{name}/{key}": file[key].tobytes() for key in file.files}
        else:
            found[name] = path.read_bytes()
    for name in ("train.csv", "evaluation.csv"):
        with open(folder / "logs" / name, newline="") as file:
            rows = list(csv.DictReader(file))
        found[name] = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a new folder")
    parser.add_argument("--kills", type=int, default=100, help="in all cases together")
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance, table = random.Random(arguments.seed), {}
    for case in arguments.cases:
        whole, kills = arguments.out / case / "whole", arguments.kills // len(arguments.cases)
        whole.mkdir(parents=True)
        start = time.monotonic()
        if train(case, run_folder(case, whole)).wait() != 0:
            raise SystemExit(f"{case} failed: see {whole / 'terminal.txt'}")
        life, expected = 0.6 * (time.monotonic() - start), contents(run_folder(case, whole))
        lives: list[list[int]] = []
        differ: set[str] = set()
        while (left := kills - sum(map(len, lives))) > 0:
            killed = arguments.out / case / f"killed-{len(lives)}"
            killed.mkdir()
            lives.append(train_with_kills(case, killed, left, life, chance))
            found = contents(run_folder(case, killed))
            differ |= {name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)}
        table[case] = {"steps_at_kills": lives, "differ": sorted(differ)}
        print(f"{case}: kills at {lives}, {len(differ)} differences {sorted(differ)[:5]}", file=sys.stderr, flush=True)
    print(json.dumps(table, indent=1))
    return int(any(row["differ"] for row in table.values()))


if __name__ == "__main__":
    raise SystemExit(main())
