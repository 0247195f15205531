"""Launched programs whose fault no restart can mend end at once, with that one error."""

import os
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from dm_env import specs

from agentkit.agents import registry
from agentkit.distributed import ProgramError
from agentkit.envs import make
from agentkit.experiment import ExperimentConfig, launch
from agentkit.wrappers.base import EnvironmentWrapper
from tests.experiment.launched import REPLAY, ROOT

pytestmark = pytest.mark.both_stacks

SECONDS = 60.0  # 3 to 6 s were seen; of restarts there were minutes.
WIDTH = {"pixels": 5}


class Resized(EnvironmentWrapper):
    """Has as many pixels as WIDTH says now."""

    def observation_spec(self):
        return specs.Array((WIDTH["pixels"],), np.float32, "pixels")

    def reset(self):
        return super().reset()._replace(observation=np.zeros(WIDTH["pixels"], np.float32))

    def step(self, action):
        return super().step(action)._replace(observation=np.zeros(WIDTH["pixels"], np.float32))


def go(tmp_path, steps, **settings):
    """Runs it in threads of this process: nothing here is about processes, and they take seconds to start."""
    experiment = ExperimentConfig(
        registry.make("dqn", {"min_replay_size": 50, "updates_per_step": 0.1, "hidden_sizes": (16,), "batch_size": 16}),
        lambda seed: Resized(make("agentkit:catch", seed, raw=True)),
        num_steps=steps,
        run_directory=tmp_path / "run",
        evaluation_period=0,
        replay=REPLAY,
    )
    return launch(experiment, num_actors=1, num_evaluators=0, engine="threads", **settings)


def test_a_replay_of_another_signature_ends_the_program(tmp_path, monkeypatch):
    go(tmp_path, 200)
    monkeypatch.setitem(WIDTH, "pixels", 6)
    start = time.monotonic()
    with pytest.raises(ProgramError, match=r"raised ResumeError: "):
        go(tmp_path, 400, resume=True)
    assert time.monotonic() - start < SECONDS


def test_a_platform_that_is_not_there_ends_the_program(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("no libtpu.so")

    monkeypatch.setattr(jax, "local_devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(ProgramError, match=r"raised ConfigError: JAX cannot begin with JAX_PLATFORMS=tpu \(no libtpu"):
        go(tmp_path, 200)


def test_too_little_shared_memory_ends_the_program_and_names_what_is_needed(tmp_path):
    """As in a container with 64 MB of it; here it has 1 MB, in a mount namespace of its own."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no file system of an own size can be had here")
    words = ["launch", "dqn", "--env", "agentkit:catch", "--steps", "100_000", "--out", str(tmp_path)]
    words += ["--set", "hidden_sizes=512,512", "--engine", "threads", "--actors", "1", "--eval-every", "0"]
    done = subprocess.run(
        [*mount, sys.executable, "-m", "agentkit.cli", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "2.3 MB: free some memory, enlarge it (docker run --shm-size)" in done.stderr
