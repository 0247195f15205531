"""`agentkit launch` end to end, with real processes and a real replay server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.loggers import read_csv
from tests.processes import is_alive

pytestmark = pytest.mark.both_stacks

ROOT = Path(__file__).resolve().parents[2]
CATCH = ["launch", "dqn", "--env", "agentkit:catch"]
SMALL = ["--set", "hidden_sizes=16", "--set", "min_replay_size=32", "--set", "batch_size=8"]
LONG = ["--steps", "10_000_000", "--eval-every", "0", "--checkpoint-every", "0"]


def start(words, cwd, code="import sys; from agentkit.cli import main; sys.exit(main(sys.argv[1:]))"):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_updates(folder, seconds=120):
    """Until the learner has logged something."""
    log = folder / "logs" / "learner.csv"
    deadline = time.monotonic() + seconds
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < deadline, "no learner step"
        time.sleep(0.1)


def pids_of(folder):
    record = json.loads((folder / "board.json").read_text())
    from agentkit.distributed import RunStoreClient

    client = RunStoreClient(record["address"], record["run_id"])
    nodes = client.status()["nodes"]
    client.close()
    return {name: node["pid"] for name, node in nodes.items()}


@pytest.mark.full
def test_a_whole_run_and_its_resumption(tmp_path):
    words = [*CATCH, *SMALL, "--steps", "600", "--seed", "3", "--eval-episodes", "2", "--actors", "1"]
    process = start(words, tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    run = tmp_path / re.search(r"^Run folder: (.*)$", out, re.MULTILINE)[1]
    assert run.name == "dqn-agentkit_catch-seed3"
    assert f"Saved {run.relative_to(tmp_path)}" in out
    assert re.search(r"^100% [\d,]+/600 steps", err, re.MULTILINE) and "actor 0/1 (1 done)" in err
    assert json.loads((run / "config.json").read_text())["launch"]["num_actors"] == 1
    _, rows = read_csv(run / "logs" / "evaluation.csv")
    assert int(rows[-1]["steps"]) >= 600
    assert not (run / "board.json").exists()
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0

    process = start(["launch", "--resume", str(run), "--steps", "900", "--actors", "2"], tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert re.search(r"^100% [\d,]+/900 steps", err, re.MULTILINE) and "actor 0/2 (2 done)" in err


@pytest.mark.full
def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path):
    process = start([*CATCH, *SMALL, *LONG], tmp_path)
    try:
        run = tmp_path / re.search(r"^Run folder: (.*)$", process.stdout.readline())[1]
        wait_for_updates(run)
        assert main(["status", str(run)]) == 0
        pids = pids_of(run)
        assert set(pids) == {"replay-0", "learner-0", "actor-0", "actor-1"}  # --eval-every 0: no evaluator
        process.send_signal(signal.SIGINT)
        start_time = time.monotonic()
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - start_time
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err and "Stopping: stopped by SIGINT" in err
    step = int(re.search(r"Stopped at step ([\d,]+) and saved", out)[1].replace(",", ""))
    assert step > 0 and list((run / "checkpoints").glob("step_*"))
    assert not any(is_alive(pid) for pid in pids.values())
    assert seconds < 20  # 5 s are promised; test machines are busy.


@pytest.mark.full
def test_a_second_ctrl_c_kills(tmp_path):
    process = start([*CATCH, *SMALL, *LONG], tmp_path)
    try:
        run = tmp_path / re.search(r"^Run folder: (.*)$", process.stdout.readline())[1]
        wait_for_updates(run)
        pids = pids_of(run)
        os.kill(pids["learner-0"], signal.SIGSTOP)  # It will not save.
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "stopped at once by Ctrl-C" in err and "Traceback" not in err
    assert not any(is_alive(pid) for pid in pids.values())


@pytest.mark.full
def test_a_node_that_cannot_be_mended_ends_it_with_its_own_words(tmp_path):
    # The launching process can make it, and the nodes cannot.
    code = """
import os, sys
from agentkit import envs
from agentkit.cli import main
from agentkit.envs.catch import Catch
from agentkit.errors import unknown_name
launching = os.getpid()
def make(name, seed):
    if os.getpid() != launching:
        raise unknown_name("environment", "mine:" + name, [])
    return Catch(seed=seed)
envs.register("mine", make)
sys.exit(main(sys.argv[1:]))
"""
    words = ["launch", "dqn", "--env", "mine:catch", *SMALL, "--steps", "600"]
    process = start(words, tmp_path, code)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(r"^agentkit: \w+-\d+ raised UnknownNameError: .*mine", err, re.MULTILINE)
    assert "Traceback" not in err and "agentkit launch --resume runs/dqn-mine_catch-seed0" in err
    assert "nodes/" in err  # where its log is


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launch", "dqm", "--env", "agentkit:catch", "--steps", "9"], "Did you mean 'dqn'"),
        (["launch", "dqn", "--env", "agentkit:point_mass", "--steps", "9"], "discrete"),
        (CATCH, "--steps is missing. Example: agentkit launch"),
        ([*CATCH, "--steps", "9", "--learner-gpus", "1.5"], "learner_gpus must be a part of one or a whole number"),
        ([*CATCH, "--steps", "9", "--ray-address", "a:1"], "ray_address belongs to engine='ray'"),
        ([*CATCH, "--steps", "9", "--out", "/dev/null/runs"], "cannot be made"),
        (["launch", "--resume", "nowhere"], "not a run folder: there is no such folder"),
        (["launch", "sac", "--resume", "nowhere", "--seed", "0"], "leave out AGENT, --seed"),
        ([*CATCH, "--steps", "9", "--evaluators", "0", "--eval-every", "5"], "--eval-every is of evaluations, and"),
        ([*CATCH, "--steps", "9", "--evaluators", "0", "--stop-at-return=0"], "--stop-at-return is of evaluations"),
        ([*CATCH, "--steps", "9", "--evaluators", "0", "--keep-best"], "--keep-best is of evaluations"),
        ([*CATCH, "--steps", "9", "--evaluators", "0", "--best-score", "x"], "--best-score is of evaluations"),
        ([*CATCH, "--steps", "9", "--evaluators", "0", "--evaluate-samples"], "--evaluate-samples is of evaluations"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("agentkit: ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_one_process_is_not_relaunched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *CATCH[1:], *SMALL, "--steps", "20", "--eval-every", "0"]) == 0
    run = re.search(r"^Run folder: (.*)$", capsys.readouterr().out, re.MULTILINE)[1]
    assert main(["launch", "--resume", run]) == 2
    assert "agentkit train --resume" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "extra"), [("reverb", "reverb"), ("ray", "ray")])
def test_a_missing_package_names_its_extra_and_leaves_no_folder(missing, extra, tmp_path, monkeypatch, capsys):
    found = {"reverb": object(), "ray": object(), missing: None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found[name])
    monkeypatch.chdir(tmp_path)
    assert main([*CATCH, "--steps", "9", "--engine", "ray", "--replay", "reverb"]) == 2
    assert f"agentkit-rl[{extra}]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
