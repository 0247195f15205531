"""The journeys of several seeds and of a sweep, shortened; two processes of the sweep are killed on the way."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from agentkit.cli import main
from agentkit.experiment.sweeps.jobs import read_progress
from agentkit.loggers import read_csv
from tests.processes import is_alive

pytestmark = pytest.mark.full

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOURNEYS = ROOT / "examples" / "journeys"


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_five_seeds_in_parallel(tmp_path):
    pytest.importorskip("gymnasium")
    done = subprocess.run(
        [sys.executable, str(JOURNEYS / "five_seeds.py"), "40", "2"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^return ([\d.]+) \+- [\d.]+$", done.stdout, re.MULTILINE)
    last = [float(read_csv(tmp_path / f"runs/five-seeds/seed{seed}/logs/evaluation.csv")[1][-1]["episode_return"])
            for seed in (0, 1)]  # fmt: skip
    assert float(found) == pytest.approx(sum(last) / 2, abs=0.06)
    assert "seed 1 finished 40 steps" in done.stderr


def shortened(text):
    small = "checkpoint_every = 100\nset = {hidden_sizes = [8], min_replay_size = 30, replay_size = 500}\n"
    for old, new in (
        ("steps = 20_000\n", f"steps = 1_200\neval_episodes = 1\n{small}"),
        ("trials = 30", "trials = 2"),
        ("jobs = 2", "jobs = 1"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _trains(child):
    try:
        return "job_process" in " ".join(child.cmdline())
    except psutil.Error:  # It has ended meanwhile.
        return False


def test_a_sweep_with_pruning_goes_on_after_a_kill_of_a_trial_and_of_itself(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium")
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    path, folder = tmp_path / "mine.toml", tmp_path / "runs/sweep-mine"
    path.write_text(shortened((JOURNEYS / "sweep_with_pruning.toml").read_text()))
    run = folder / "trial-0000/seed0"
    process = subprocess.Popen(
        [sys.executable, "-c", "from agentkit.cli import main; main()", "sweep", path.name], env=environment()
    )

    def trainings():
        return [child for child in psutil.Process(process.pid).children() if _trains(child)]

    wait_for(lambda: list(run.glob("checkpoints/step_*/manifest.json")))
    (first,) = trainings()
    first.kill()  # A trial: the sweep goes on with it.
    wait_for(lambda: [child for child in trainings() if child.pid != first.pid])
    (second,) = trainings()
    process.send_signal(signal.SIGKILL)  # The sweep: its trial dies with it.
    process.wait()
    wait_for(lambda: not is_alive(second.pid), 10)
    reached = read_progress(run).steps
    capsys.readouterr()

    assert main(["sweep", path.name, "--status"]) == 0
    assert "stopped" in capsys.readouterr().out
    assert main(["sweep", path.name]) == 0
    _, rows = read_csv(folder / "results.csv")
    assert [(row["trial"], row["state"]) for row in rows] == [("0", "complete"), ("1", "complete")]
    steps = [int(row["steps"]) for row in read_csv(run / "logs/train.csv")[1]]
    assert steps == sorted(set(steps)) and reached > 0  # No episode is there twice.
    out = capsys.readouterr().out
    assert "2 trials (2 complete)" in out and "agentkit train dqn --env gymnasium:CartPole-v1 --steps 1200" in out

    monkeypatch.setattr("agentkit.experiment.sweeps.jobs.JobProcesses.start", None)  # Nothing starts any more.
    assert main(["sweep", path.name]) == 0
    record = json.loads((folder / "trial-0001/trial.json").read_text())
    assert record["state"] == "complete" and str(record["value"]) == rows[1]["value"]
