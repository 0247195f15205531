import csv

import numpy as np
import pytest

from agentkit.cli import main
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


def test_one_environment_has_a_table_and_a_picture(runs, tmp_path, capsys):
    picture, scores = tmp_path / "c.png", tmp_path / "c.csv"
    catch = [run for run in runs if "tch" in run]
    begun = str(make_run(tmp_path / "begun", evaluation=()))
    code, out, _ = said_by(capsys, *catch, begun, "-o", str(picture), "--csv", str(scores))
    assert code == 0 and picture.read_bytes().startswith(b"\x89PNG")
    # The last tenth has the evaluations at steps 90 and 100: 0.95 of the final return.
    lines = [line.split() for line in out.splitlines()]
    assert ["dqn", "3", "2", "[1.9,", "2.09]", "2", "[1.9,", "2.09]", "2", "[1.9,", "2.09]"] in lines
    assert "dqn over ppo: 1 [1, 1]" in out and "optimality gap" not in out and begun in out
    assert out.index("\ndqn ") < out.index("\nppo ") and "Fewer than 3" not in out
    with scores.open(newline="") as file:
        found = [float(row["score"]) for row in csv.DictReader(file) if row["runs"] == "ppo"]
    np.testing.assert_allclose(found, [0.95, 1.045, 1.14])
    _, out, _ = said_by(capsys, *catch[:2], "-o", str(picture), "--score", "best")
    assert ["dqn", "1", "2", "[2,"] in [line.split()[:4] for line in out.splitlines()] and "Fewer than 3 runs" in out


def test_environments_are_put_together_only_when_normalised(runs, tmp_path, capsys):
    picture = tmp_path / "c.pdf"
    code, out, _ = said_by(capsys, *runs, "-o", str(picture))
    assert code == 0 and not picture.exists() and out.count("\ndqn ") == 2 and "--normalize minmax" in out
    words = [f"{CATCH}=0:2", f"{SEA}=0:100"]
    wanted = [word for text in words for word in ("--normalize", text)]
    code, out, _ = said_by(capsys, *runs, "-o", str(picture), *wanted, "--score", "best")
    assert code == 0 and picture.exists() and "optimality gap" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("dqn ")]
    # catch 1, 1.05, 1.1 and deep_sea 0.5, 0.501, 0.502: the middle half of six, and what is missing to 1.
    assert (
        row[2] == f"{np.mean([0.501, 0.502, 1.0, 1.05]):.3g}"
        and row[-3] == f"{1 - np.mean([1, 1, 1, 0.5, 0.501, 0.502]):.3g}"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--normalize", f"{CATCH}=0:1"], f"nothing is said of {SEA}"),
        (["--normalize", "0:1:2"], "expected minmax or ENV=LOW:HIGH"),
        (["--normalize", f"{CATCH}=1:1", "--normalize", "minmax"], "the same score at both ends"),
    ],
)
def test_what_cannot_be_normalised(runs, capsys, words, message):
    code, _, err = said_by(capsys, *runs, *words)
    assert code == 2 and message in err


def test_groups_that_were_not_in_the_same_environments(runs, capsys):
    fewer = [run for run in runs if not ("ppo" in run and "sea" in run)]
    code, _, err = said_by(capsys, *fewer, "--normalize", "minmax")
    assert code == 2 and f"ppo has no run in {SEA}" in err
