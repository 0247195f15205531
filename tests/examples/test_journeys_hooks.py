"""Journeys that stand on callbacks: scripts of a user's, run with fewer steps."""

import pathlib
import re

import pytest

from agentkit.loggers import read_csv

pytest.importorskip("gymnasium")

pytestmark = pytest.mark.full

JOURNEYS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "journeys"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)


def play(name: str, scale: int, *changes: tuple[str, str]) -> None:
    """Runs a journey's script, with numbers of steps (those with a ``_``) divided by `scale`."""
    source = (JOURNEYS / f"{name}.py").read_text()
    code = [line for line in source.splitlines() if line.strip()]
    assert len(code) <= 15, f"{name} has {len(code)} lines"
    shorter = re.sub(r"\b\d+_\d+\b", lambda found: str(int(found[0]) // scale), source)
    for before, after in changes:
        assert before in shorter
        shorter = shorter.replace(before, after)
    exec(compile(shorter, name, "exec"), {"__name__": "__main__"})


def test_early_stop_with_best(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("early_stop", 100, ("return_above=475", "return_above=1"))
    assert re.match(r"After 20 steps: evaluation return [\d.]+ reached 1\n", capsys.readouterr().out)
    assert (tmp_path / "best.npz").is_file()


def test_own_metric(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("own_metric", 1000, ("evaluation_period=10", "evaluation_period=50, evaluation_episodes=2"))
    positions = [float(x) for x in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)]
    folder = tmp_path / "runs" / "own_metric" / "logs"
    logs = {log: read_csv(folder / f"{log}.csv")[1] for log in ("train", "evaluation")}
    assert [float(row["x_position"]) for row in logs["evaluation"]] == pytest.approx(positions, abs=0.006)
    assert len(positions) == 2 and all(abs(float(row["x_position"])) < 5 for row in logs["train"])


def test_notebook(tmp_path: pathlib.Path) -> None:
    play("notebook", 200)
    assert (tmp_path / "returns.png").stat().st_size > 1000
