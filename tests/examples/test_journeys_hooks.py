"""Journeys that stand on callbacks: scripts of a user's, run with fewer steps."""

import pathlib
import re
import subprocess
import sys

import pytest

from agentkit.loggers import read_csv

pytest.importorskip("gymnasium")

pytestmark = [pytest.mark.one_stack, pytest.mark.slow]

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(name: str, folder: pathlib.Path, scale: int, *changes: tuple[str, str]) -> str:
    """Runs a journey, with numbers of steps (those with a ``_``) divided by `scale`; returns what it prints."""
    source = (ROOT / "examples" / "journeys" / f"{name}.py").read_text()
    code = [line for line in source.splitlines() if line.strip()]
    assert len(code) <= 15, f"{name} has {len(code)} lines"
    shorter = re.sub(r"\b\d+_\d+\b", lambda found: str(int(found[0]) // scale), source)
    for before, after in changes:
        assert before in shorter
        shorter = shorter.replace(before, after)
    script = folder / f"{name}.py"
    script.write_text(shorter)
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "MPLBACKEND": "agg"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_early_stop_with_best(tmp_path: pathlib.Path) -> None:
    printed = run("early_stop", tmp_path, 100, ("return_above=475", "return_above=1"))
    assert re.match(r"After 20 steps: evaluation return [\d.]+ reached 1\n", printed)
    assert (tmp_path / "best.npz").is_file()


def test_own_metric(tmp_path: pathlib.Path) -> None:
    printed = run("own_metric", tmp_path, 1000)
    positions = re.findall(r"-?\d+\.\d+", printed)
    logs = {
        log: read_csv(tmp_path / "runs" / "own_metric" / "logs" / f"{log}.csv")[1] for log in ("train", "evaluation")
    }
    assert [f"{float(row['x_position']):.2f}" for row in logs["evaluation"]] == [f"{float(x):.2f}" for x in positions]
    assert len(positions) == 10 and all(abs(float(row["x_position"])) < 5 for row in logs["train"])


def test_resume(tmp_path: pathlib.Path) -> None:
    assert run("resume", tmp_path, 20).startswith("2,000 steps, ")


def test_notebook(tmp_path: pathlib.Path) -> None:
    run("notebook", tmp_path, 20)
    assert (tmp_path / "returns.png").stat().st_size > 1000
