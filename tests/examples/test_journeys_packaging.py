"""The journey of a run that is killed and started again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit import checkpoint

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "journeys" / "resume.py"


def start(folder: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, SCRIPT], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_killed_run_goes_on(tmp_path):
    folder = tmp_path / "runs" / "mine" / "checkpoints"
    process = start(tmp_path)
    try:
        end = time.monotonic() + 300
        while not (found := checkpoint.steps(folder)) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert found and found[-1] < 2_000, f"It was not killed in the middle: {found}"
    output, _ = start(tmp_path).communicate(timeout=300)
    assert output.startswith("2000 steps, ") and int(output.split()[2]) > 0
    assert checkpoint.steps(folder)[-1] == 2_000


def test_a_journey_has_at_most_15_lines():
    lines = [line for line in SCRIPT.read_text().splitlines() if line.strip()]
    assert len(lines) <= 15
