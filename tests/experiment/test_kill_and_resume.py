"""A run that is killed at random instants and resumed ends bit for bit as an uninterrupted one."""

import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from agentkit import checkpoint

_CASES = {
    "dqn": ("gymnasium:CartPole-v1", 6_000, ["prioritized=true", "n_step=3", "updates_per_call=2"]),
    "sac": ("gymnasium:Pendulum-v1", 2_500, ["hidden_sizes=32,32", "batch_size=32"]),
}
_NUM_KILLS = 6

_BATCHED = """
import os, sys
import agentkit
from agentkit.agents import registry
from agentkit import checkpoint

folder, die_at, num_envs = sys.argv[1], int(sys.argv[2]), 4
settings = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 50, "replay_size": 400}
plan = agentkit.ExperimentConfig(
    registry.make("dqn", settings), "agentkit:catch", 400, num_envs=num_envs, run_directory=folder,
    checkpoint_period=100, evaluation_period=0,  # No multiple of the batch's episodes: some are under way then.
)
if die_at:  # As kill -9 would, in the middle between two checkpoints: rows of later steps are in the log.
    make = agentkit.ExperimentConfig.make_environment
    class Deadly:
        def __init__(self, inner): self.inner, self.count = inner, 0
        def __getattr__(self, name): return getattr(self.inner, name)
        def step(self, action):
            self.count += num_envs
            if self.count >= die_at:
                os._exit(9)
            return self.inner.step(action)
    agentkit.ExperimentConfig.make_environment = lambda self, *args: Deadly(make(self, *args))
agentkit.run(plan, resume=os.path.exists(folder + "/config.json"))
"""


def _folder(agent: str, out: pathlib.Path) -> pathlib.Path:
    return out / f"{agent}-{_CASES[agent][0].replace(':', '_')}-seed3"


def _train(agent: str, out: pathlib.Path) -> subprocess.Popen:
    environment, num_steps, settings = _CASES[agent]
    folder = _folder(agent, out)
    if (folder / "config.json").exists():
        arguments = ["train", "--resume", str(folder)]
    else:
        arguments = ["train", agent, "--env", environment, "--steps", str(num_steps), "--seed", "3"]
        arguments += ["--out", str(out), "--checkpoint-every", "100", "--eval-every", "1000"]
        arguments += ["--eval-episodes", "1", *(part for s in settings for part in ("--set", s))]
    return subprocess.Popen(
        [sys.executable, "-m", "agentkit.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _files(folder: pathlib.Path) -> dict[str, np.ndarray | bytes]:
    """Everything in a checkpoint: arrays by file and name, other files as bytes."""
    found: dict[str, np.ndarray | bytes] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"):
        name = str(path.relative_to(folder))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found |= {f"{name}/{key}": file[key] for key in file.files}
        elif path.suffix == ".npy":
            found[name] = np.load(path)
        else:
            found[name] = path.read_bytes()
    return found


@pytest.mark.full
@pytest.mark.parametrize("agent", sorted(_CASES))
def test_killed_again_and_again_equals_uninterrupted(agent: str, tmp_path: pathlib.Path) -> None:
    process = _train(agent, tmp_path / "whole")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    rng = random.Random(agent)
    folder, reference = (_folder(agent, tmp_path / out) for out in ("killed", "whole"))
    steps_at_kill = []
    for _ in range(_NUM_KILLS):
        process = _train(agent, tmp_path / "killed")
        deadline = time.monotonic() + 60
        # Importing takes most of a short life: wait for this life's first checkpoint, then any instant will do.
        before = _newest(folder)
        while _newest(folder) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        found = checkpoint.read_latest(folder / "checkpoints")
        assert found is not None, output
        steps_at_kill.append(found.step)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, output
    process = _train(agent, tmp_path / "killed")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(set(steps_at_kill)) > _NUM_KILLS // 2, steps_at_kill

    whole = checkpoint.read_latest(reference / "checkpoints")
    killed = checkpoint.read_latest(folder / "checkpoints")
    assert whole is not None and killed is not None
    assert whole.step == killed.step == _CASES[agent][1]
    expected, found_files = _files(whole.path), _files(killed.path)
    assert expected.keys() == found_files.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, found_files[name], err_msg=name)
    for log in ("train.csv", "evaluation.csv"):
        columns = ("steps", "episodes", "episode_return")
        assert _column(reference / "logs" / log, columns) == _column(folder / "logs" / log, columns)


@pytest.mark.full
def test_batched_environments_resume_with_equal_files(tmp_path: pathlib.Path) -> None:
    """Logs and each file of the last checkpoint: all but the times in them."""
    for name, lives in (("whole", (0,)), ("killed", (290, 0))):
        for die_at in lives:
            command = [sys.executable, "-c", _BATCHED, str(tmp_path / name), str(die_at)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == (9 if die_at else 0), done.stderr
    logs = [(tmp_path / name / "logs" / "train.csv").read_text().splitlines() for name in ("whole", "killed")]
    assert logs[0][0].endswith(",seconds")
    rows = [[line.rpartition(",")[0] for line in lines] for lines in logs]
    assert rows[0] == rows[1] and len(rows[0]) > 10
    whole, killed = (checkpoint.read_latest(tmp_path / name / "checkpoints") for name in ("whole", "killed"))
    assert whole is not None and killed is not None and whole.step == killed.step == 400
    expected, found = _files(whole.path), _files(killed.path)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)
    assert "replay/replay.json" in expected


def _newest(folder: pathlib.Path) -> int:
    steps = [int(p.name[5:]) for p in (folder / "checkpoints").glob("step_*")]
    return max(steps, default=-1)


def _column(path: pathlib.Path, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    import csv

    with open(path) as file:
        return [tuple(row.get(name, "") for name in names) for row in csv.DictReader(file)]
