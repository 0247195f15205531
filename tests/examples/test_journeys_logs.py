"""Journeys of logging: each script as a user runs it, in an empty folder."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOURNEYS = ROOT / "examples" / "journeys"


def lines_of(name):
    """The lines of a script that are code: no docstring, comment or empty line."""
    text = (JOURNEYS / f"{name}.py").read_text().split('"""', 2)[2]
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]


def run_script(name, folder, **variables):
    # W&B leaves the address of its service in the environment of a process that has used it.
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**own, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    done = subprocess.run(
        [sys.executable, JOURNEYS / f"{name}.py"], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_an_own_logger_has_every_number(tmp_path):
    assert len(lines_of("own_logger")) <= 15
    run_script("own_logger", tmp_path)
    database = sqlite3.connect(tmp_path / "metrics.db")
    found = dict(database.execute("SELECT name, MAX(step) FROM metrics WHERE run = 'mine' GROUP BY name"))
    database.close()
    assert found["train/episode_return"] == 999 and found["learner/loss"] > 0


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra 'wandb' is not installed")
def test_weights_and_biases_without_a_network(tmp_path):
    assert len(lines_of("weights_and_biases")) <= 15
    run_script("weights_and_biases", tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    (path,) = (tmp_path / "runs" / "mine" / "logs" / "wandb").glob("offline-run-*/run-*.wandb")
    assert path.stat().st_size > 5_000  # What is in it: tests/loggers/test_wandb.py.
