import csv
import json

import numpy as np
import pytest

from agentkit import checkpoint
from agentkit.cli import main
from agentkit.cli.drawing.curves import EVALUATION, Curve, Extent, RunCurves
from agentkit.cli.drawing.score_table import Basis, print_table
from agentkit.cli.looking.compare import score_groups
from agentkit.experiment.evaluation.aggregates import Estimate
from agentkit.loggers import CsvLogger
from tests.cli.test_plot import make_run

CATCH, SEA = "agentkit:catch", "agentkit:deep_sea"


@pytest.fixture
def runs(tmp_path):
    """Three seeds of two agents in two environments; dqn is better by 1 in the first, alike in the other."""
    found = []
    for seed in range(3):
        for agent, environment, final in (
            ("dqn", CATCH, 2.0),
            ("ppo", CATCH, 1.0),
            ("dqn", SEA, 50.0),
            ("ppo", SEA, 50.0),
        ):
            points = [(step, (final + 0.1 * seed) * step / 100) for step in range(10, 101, 10)]
            folder = tmp_path / f"{agent}-{environment[-3:]}-{seed}"
            found.append(str(make_run(folder, seed=seed, agent=agent, environment=environment, evaluation=points)))
    return found


def said_by(capsys, *words):
    code = main(["compare", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.full
def test_one_environment_has_a_table_and_a_picture(runs, tmp_path, capsys):
    picture, scores = tmp_path / "c.png", tmp_path / "c.csv"
    catch = [run for run in runs if "tch" in run]
    begun = str(make_run(tmp_path / "begun", evaluation=()))
    code, out, _ = said_by(capsys, *catch, begun, "-o", str(picture), "--csv", str(scores))
    assert code == 0 and picture.read_bytes().startswith(b"\x89PNG")
    # The last tenth has the evaluations at steps 90 and 100: 0.95 of the final return.
    lines = [line.split() for line in out.splitlines()]
    assert ["dqn", "3", "90-100", "?", "2", "[1.9,", "2.09]", "2", "[1.9,", "2.09]", "2", "[1.9,", "2.09]"] in lines
    assert "dqn over ppo: 1 [1, 1]" in out and "optimality gap" not in out and begun in out
    assert out.index("\ndqn ") < out.index("\nppo ") and "Fewer than 3" not in out
    with scores.open(newline="") as file:
        found = [float(row["score"]) for row in csv.DictReader(file) if row["runs"] == "ppo"]
    np.testing.assert_allclose(found, [0.95, 1.045, 1.14])
    _, out, _ = said_by(capsys, *catch[:2], "-o", str(picture), "--score", "best")
    assert ["dqn", "1", "100", "?", "2", "2", "2"] in [line.split() for line in out.splitlines()]
    assert "Fewer than 3 runs" in out and "[" not in out  # One run says nothing about the next one.


@pytest.mark.parametrize(
    ("asked", "last"), [(1_000_000, 1_000_027), (1_000_000, 1_000_000), (3_000_000, 1_000_000), (None, 1_000_000)]
)
def test_seeds_have_the_same_evaluations_in_their_last_tenth(asked, last):
    """However far past its ends a batch of environments steps."""
    runs = []
    for seed, ninth in enumerate((900_000, 900_012, 900_052)):
        curve = Curve(np.array([800_006.0, ninth, last]), np.array([0.0, 100.0, 200.0]))
        runs.append(RunCurves("e", {"agent": "ppo"}, {EVALUATION: curve}, Extent("d", asked, last, {}), seed))
    scores, bases = score_groups(runs, "final")
    np.testing.assert_array_equal(scores["ppo"]["e"], [150.0] * 3)
    assert [basis.last for basis in bases["ppo"]["e"]] == [last] * 3


def test_environments_are_put_together_only_when_normalised(runs, tmp_path, capsys):
    picture, scores = tmp_path / "c.pdf", tmp_path / "c.csv"
    code, out, _ = said_by(capsys, *runs, "-o", str(picture), "--csv", str(scores))
    assert code == 0 and not picture.exists() and out.count("\ndqn ") == 2 and "--normalize minmax" in out
    assert "No picture is drawn" in out and f"Wrote {scores}" in out
    with scores.open(newline="") as file:
        assert {row["environment"] for row in csv.DictReader(file)} == {CATCH, SEA}
    words = [f"{CATCH}=0:2", f"{SEA}=0:100"]
    wanted = [word for text in words for word in ("--normalize", text)]
    code, out, _ = said_by(capsys, *runs, "-o", str(picture), *wanted, "--score", "best")
    assert code == 0 and picture.exists() and "optimality gap" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("dqn ")]
    # catch 1, 1.05, 1.1 and deep_sea 0.5, 0.501, 0.502: the middle half of six, and what is missing to 1.
    assert (
        row[4] == f"{np.mean([0.501, 0.502, 1.0, 1.05]):.3g}"
        and row[-3] == f"{1 - np.mean([1, 1, 1, 0.5, 0.501, 0.502]):.3g}"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--normalize", f"{CATCH}=0:1"], f"nothing is said of {SEA}"),
        (["--normalize", "0:1:2"], "expected minmax or ENV=LOW:HIGH"),
        (["--normalize", "minmax", "--normalize", "0:1"], "expected minmax or ENV=LOW:HIGH"),
        (["--normalize", "minmax", "--normalize", f"{CATCH}=0:nan"], "expected minmax or ENV=LOW:HIGH, two numbers"),
        (["--normalize", "minmax", "--normalize", f"{CATCH}=-inf:1"], "expected minmax or ENV=LOW:HIGH, two numbers"),
        (["--normalize", "minmax", "--normalize", "agentkit:cach=0:500"], f"'agentkit:cach'. Did you mean '{CATCH}'"),
        (["--normalize", f"{CATCH}=1:1", "--normalize", "minmax"], "the same score at both ends"),
    ],
)
def test_what_cannot_be_normalised(runs, capsys, words, message):
    code, _, err = said_by(capsys, *runs, *words)
    assert code == 2 and message in err


def test_groups_that_were_not_in_the_same_environments(runs, capsys):
    fewer = [run for run in runs if not ("ppo" in run and "sea" in run)]
    code, out, err = said_by(capsys, *fewer, "--normalize", "minmax")
    assert (code, out) == (2, "") and f"ppo has no run in {SEA}" in err


def write_evaluations(folder, rows):
    with CsvLogger(folder / "logs" / "evaluation.csv") as logger:
        for step, updates, episodes, value in rows:
            row = {"steps": step, "updates": updates, "episode_return": value, "evaluation_episodes": episodes}
            logger.write(row)


def test_runs_of_several_agents_are_compared_by_the_returns_of_one(tmp_path, capsys):
    """Their sum is 0 in each: one wins what the other loses."""
    runs, picture = [], tmp_path / "c.png"
    for agent, own in (("dqn", 0.5), ("ppo", -0.25)):
        runs.append(str(folder := make_run(tmp_path / agent, agent=agent, environment="game", evaluation=())))
        with CsvLogger(folder / "logs" / "evaluation.csv") as logger:
            logger.write({"steps": 10, "episode_return": 0.0, "episode_return/a": own, "episode_return/b": -own})
    other = str(make_run(tmp_path / "other"))
    code, out, _ = said_by(capsys, *runs, other, "-o", str(picture), "--return-of", "a")
    left_out = f"they have no {EVALUATION}/a against steps yet: {other} (nearest: {EVALUATION})"
    assert (
        code == 0 and left_out in " ".join(out.split()) and "last tenth of the steps that were evaluated, of a." in out
    )
    found = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.startswith(("dqn ", "ppo "))}
    assert (found["dqn"], found["ppo"]) == ("0.5", "-0.25")
    code, _, err = said_by(capsys, *runs, "-o", str(picture), "--return-of", "c")
    assert code == 2 and "holds no evaluation/episode_return/c" in err and "There are: " in err


def test_a_stopped_run_says_of_which_step_and_how_many_episodes_its_score_is(tmp_path, capsys):
    runs = [make_run(tmp_path / name, evaluation=(), seed=seed) for seed, name in enumerate(("whole", "stopped"))]
    whole, stopped = [(300, 0, 1, 9.0), (2_800, 9, 2, 40.0), (3_000, 9, 4, 50.0)], [(300, 0, 1, 9.5)]
    for run, rows in zip(runs, (whole, stopped), strict=True):
        config = json.loads((run / "config.json").read_text()) | {"num_steps": 3_000}
        (run / "config.json").write_text(json.dumps(config))
        write_evaluations(run, rows)
    checkpoint.write(runs[1] / "checkpoints", 2_380, {})
    scores = tmp_path / "c.csv"
    _, out, _ = said_by(capsys, *map(str, runs), "-o", str(tmp_path / "c.png"), "--csv", str(scores))
    (row,) = [line.split() for line in out.splitlines() if line.startswith("sac ")]
    assert row[:5] == ["sac", "2", "300-3,000", "1-6", "27.2"]
    said = "stopped: step 2,380 of 3,000, last evaluated at step 300, before its first update"
    assert out.count(said) == 1 == out.count(": step ")
    with scores.open(newline="") as file:
        found = [(row["first_step"], row["last_step"], row["episodes"]) for row in csv.DictReader(file)]
    assert found == [("2800.0", "3000.0", "6.0"), ("300.0", "300.0", "1.0")]
    _, out, _ = said_by(capsys, str(runs[1]), "-o", str(tmp_path / "c.png"))
    assert "[" not in out and "bootstrap" not in out


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_table_breaks_in_no_number(columns, capsys, monkeypatch):
    estimate = Estimate(*map(np.float64, (-1_234.5, -12_345.6, 1_234_567.8)))
    names = ["dqn", "dqn hidden_sizes=(256, 256) learning_rate=0.0003"]
    tables = {name: dict.fromkeys(names, estimate) for name in ("IQM", "median", "mean", "optimality gap")}
    monkeypatch.setattr("agentkit.cli.drawing.score_table.width", lambda: columns)
    bases = {name: [Basis(300, 1_000_000, 20)] for name in names}
    print_table(tables, {name: [np.zeros(3)] for name in names}, bases, names)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\n".join(lines).count("-1,234 [-12,346, 1,234,568]") == 8
    assert sum("300-1,000,000" in line for line in lines) == 2
