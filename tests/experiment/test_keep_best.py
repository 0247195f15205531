"""The best policy of a run, killed while it is written."""

import pathlib
import random
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from agentkit import checkpoint
from agentkit.callbacks import RunView, keep_best, read_best
from agentkit.errors import CheckpointError
from tests.experiment.best_writer import Experiment, policy_of

pytestmark = pytest.mark.one_stack

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_kill_9_leaves_the_best_whole(tmp_path: pathlib.Path) -> None:
    rng, known = random.Random(0), 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.experiment.best_writer", str(tmp_path), str(known)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        ) as process:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            time.sleep(0.1 * rng.random())
            process.kill()
            said += process.stdout.readlines()
        written = int([line for line in said if line.endswith("\n")][-1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = read_best(tmp_path)
        assert found is not None and written <= found.step <= written + 1
        best = found.state["best"]
        assert best["evaluation"]["episode_return"] == found.step > known
        (weights,) = best["policy"].values()
        np.testing.assert_array_equal(weights, policy_of(found.step)["weights"])
        known = found.step


def test_of_two_that_a_kill_has_left_the_better_is_read_and_the_worse_not_missed(tmp_path: pathlib.Path) -> None:
    def write(step: int, value: float) -> None:
        best = {"num_updates": 0, "evaluation": {"episode_return": value}, "policy": {}}
        checkpoint.write(tmp_path / "best", step, {"best": best}, max_to_keep=2)

    assert read_best(tmp_path) is None
    write(200, 1.0)
    write(100, 2.0)  # Of a run that went back to an earlier checkpoint, and was killed before 200 was deleted.
    found = read_best(tmp_path)
    assert found is not None and found.step == 100
    run = RunView(Experiment(), "run", tmp_path, count_steps=lambda: 300, get_params=lambda: policy_of(3))
    callback = keep_best()
    callback.on_start(run, None)
    for value, kept in ((1.5, 100), (float("nan"), 100), (2.0, 100), (2.5, 300)):
        callback.on_evaluation(run, {"episode_return": value})
        found = read_best(tmp_path)
        assert found is not None and found.step == kept
    assert checkpoint.steps(tmp_path / "best") == [300]


def test_a_disk_that_refuses_is_a_warning(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise CheckpointError("The disk is full.")

    monkeypatch.setattr(checkpoint, "write", refuse)
    run = RunView(Experiment(), "run", tmp_path, count_steps=lambda: 1, get_params=lambda: policy_of(1))
    callback = keep_best()
    callback.on_start(run, None)
    with pytest.warns(checkpoint.CheckpointWarning, match="disk is full. The best policy is not kept"):
        assert callback.on_evaluation(run, {"episode_return": 1.0}) is None
    assert callback.best is None  # The next one tries again.
