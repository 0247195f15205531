"""The journeys deploy, video and export, run as a user runs them, each at most 15 lines long."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "journeys"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "catch"
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8))
    agentkit.run(
        agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=40, run_directory=folder, evaluation_period=0)
    )
    return folder


def journey(name, run, folder):
    """What a script prints, in a folder of its own."""
    lines = [line for line in (FOLDER / name).read_text().splitlines()[1:] if line.strip()]
    assert len(lines) <= 15
    command = [sys.executable, str(FOLDER / name), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_deploy(run, tmp_path):
    journey("deploy.py", run, tmp_path)
    code = """
import sys, numpy as np, agentkit
policy = agentkit.load("policy.npz")
simulators = {"gymnasium", "mujoco", "dm_control", "agentkit.envs.catch"}
print(policy(np.ones((10, 5)))[0], sorted(simulators & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == [str(agentkit.load(run)(np.ones((10, 5)))[0]), "[]\n"]


@pytest.mark.full
def test_video(run, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    journey("video.py", run, tmp_path)
    assert (tmp_path / "run.gif").read_bytes()[:3] == b"GIF" and (tmp_path / "run.mp4").read_bytes()[4:8] == b"ftyp"


@pytest.mark.full
def test_export(run, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    hlo, onnx = journey("export.py", run, tmp_path).splitlines()
    action, _ = agentkit.load(run)(np.zeros((10, 5)))
    assert hlo == onnx == str(np.full(8, action))
