"""The best policy of a run, killed while it is written."""

import errno
import json
import pathlib
import random
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest

import agentkit
from agentkit import checkpoint
from agentkit.callbacks import RunView, keep_best, read_best
from agentkit.callbacks.base import Episode
from agentkit.callbacks.best import KeepBest, Rank
from agentkit.cli import main
from agentkit.errors import CheckpointError, ConfigError, UnknownNameError
from agentkit.experiment import read_record
from agentkit.experiment.config import callback_record
from tests.experiment.best_writer import Experiment, policy_of
from tests.experiment.own_callbacks import Margin

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.full
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


@pytest.mark.filterwarnings("ignore:Passing over")
def test_a_damaged_one_is_a_warning_and_the_best_is_kept_anew(tmp_path: pathlib.Path) -> None:
    assert judge(tmp_path, keep_best(), [[5.0] * 5]) == [1]
    arrays = tmp_path / "best" / "step_000000000001" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-9])
    callback = keep_best()
    with pytest.warns(checkpoint.CheckpointWarning, match="No checkpoint can be read.*The best policy is kept anew"):
        assert judge(tmp_path, callback, [[3.0] * 5, [2.0] * 5], start=1) == [2, 2]
    assert callback.best == Rank(True, 3.0)
    assert checkpoint.steps(tmp_path / "best") == [2]


def test_one_that_a_disk_does_not_give_just_now_stays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(tmp_path, keep_best(), [[5.0] * 5]) == [1]

    def fail(path: pathlib.Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "read_npz", fail)
        callback = keep_best()
        with warnings.catch_warnings(record=True) as caught, pytest.raises(CheckpointError):  # By the test's own look.
            warnings.simplefilter("always")
            judge(tmp_path, callback, [[3.0] * 5], start=1)
        assert "The best policy is not kept; training goes on" in str(caught[-2].message)
    assert judge(tmp_path, callback, [[3.0] * 5, [6.0] * 5], start=2) == [1, 4]


def judge(
    folder: pathlib.Path, callback: KeepBest, evaluations: list[list[float]], start: int = 0, experiment: Any = None
) -> list[int]:
    """Returns the step whose policy is kept after each evaluation, which is given by its episodes' returns."""
    step, kept = start, []
    folder.mkdir(exist_ok=True)
    run = RunView(experiment or Experiment(), "run", folder, lambda: step, get_params=lambda: policy_of(step))
    callback.on_start(run, None)
    for returns in evaluations:
        step += 1
        for number, value in enumerate(returns, start=1):
            callback.on_evaluation_episode(run, Episode(None, {"episode_return": value, "episodes": number}, {}))
        record = {
            "episode_return": float(np.mean(returns)),
            "episode_return_min": min(returns),
            "evaluation_episodes": len(returns),
        }
        callback.on_evaluation(run, record)
        found = read_best(folder)
        kept.append(0 if found is None else found.step)
    return kept


def test_evaluations_of_one_episode_are_judged_by_the_last_five(tmp_path: pathlib.Path) -> None:
    lucky = [[9.0], [2.0], [3.0], [3.0], [3.0], [4.0], [5.0], [30.0], [0.0], [0.0]]
    # The means of up to five are 9, 5.5, 4.7, 4.25, then 4, which is sure, but of a 3; 3, 3.6, 9, 8.4 and 7.8 of 0s.
    assert judge(tmp_path / "a", keep_best(), lucky) == [1, 1, 1, 1, 5, 5, 7, 8, 8, 8]
    singly = [1, 1, 1, 1, 1, 1, 1, 8, 8, 8]
    assert judge(tmp_path / "b", keep_best(min_episodes=1), lucky) == singly
    asked = Experiment()
    asked.evaluation_episodes = 1  # type: ignore[attr-defined]  # What a run says is kept exactly.
    assert judge(tmp_path / "e", keep_best(), lucky, experiment=asked) == singly
    # A poor one is not the best because one that was poorer is forgotten.
    assert judge(tmp_path / "d", keep_best(), [[1.0], [5.0], [5.0], [5.0], [5.0], [4.0]]) == [1, 2, 3, 4, 5, 5]
    # They weigh by their episodes; of one with five, nothing older counts.
    assert judge(tmp_path / "c", keep_best(), [[8.0] * 3, [0.0], [4.0] * 5, [5.0] * 5]) == [1, 1, 3, 4]


def test_a_resumed_run_judges_as_a_whole_one(tmp_path: pathlib.Path) -> None:
    evaluations = [[1.0], [2.0, 7.0], [3.0], [8.0, 1.0], [2.0], [9.0]]
    for name, score in (("number", "episode_return"), ("function", total_of)):
        whole = judge(tmp_path / f"{name}-whole", keep_best(score), evaluations)
        first = keep_best(score)
        halved = judge(tmp_path / f"{name}-halved", first, evaluations[:3])
        second = keep_best(score)
        second.restore(first.save())
        assert halved + judge(tmp_path / f"{name}-halved", second, evaluations[3:], start=3) == whole
        assert len(set(whole)) > 2


def test_evaluations_by_another_score_are_not_judged_with_a_resumed_runs_own(tmp_path: pathlib.Path) -> None:
    for score, name in (("episode_return_min", "other"), ("episode_return", "own")):
        first, second = keep_best(score), keep_best()
        judge(tmp_path / f"{name}-first", first, [[200.0]] * 4)
        second.restore(first.save())
        judge(tmp_path / name, second, [[1.0]], start=4)
        assert second.best == (Rank(False, 1.0) if name == "other" else Rank(True, 1.0))
    of_before = keep_best()
    of_before.restore(first.save()["recent"])  # It had no name of its score.
    judge(tmp_path / "before", of_before, [[1.0]], start=4)
    assert of_before.best == Rank(True, 1.0)


@pytest.mark.parametrize("score", ["episode_return", "function"])
def test_another_run_is_judged_by_its_own_evaluations_alone(tmp_path: pathlib.Path, score: str) -> None:
    def make() -> KeepBest:
        return keep_best(total_of if score == "function" else score, min_episodes=5)

    evaluations = [[value] for value in (100.0, 20.0, 20.0, 20.0, 20.0, 90.0, 90.0, 90.0, 90.0, 90.0)]
    alone = judge(tmp_path / "alone", make(), evaluations)
    used = make()
    judge(tmp_path / "before", used, [[500.0]] * 6)
    assert judge(tmp_path / "after", used, evaluations) == alone and alone[-1] == 10


def test_episodes_of_an_evaluation_that_was_broken_off_are_not_judged(tmp_path: pathlib.Path) -> None:
    callback = keep_best(total_of)
    run = RunView(Experiment(), "evaluator", tmp_path, lambda: 1, get_params=lambda: policy_of(1))
    for at_start in (True, False):  # A run ends in the midst of an evaluation, and a launched one then evaluates again.
        callback.on_start(run, None)
        for number in range(1, 4):
            callback.on_evaluation_episode(run, Episode(None, {"episode_return": 9.0, "episodes": number}, {}))
        if at_start:
            callback.on_start(run, None)
        for number in range(1, 6):
            callback.on_evaluation_episode(run, Episode(None, {"episode_return": 1.0, "episodes": number}, {}))
        callback.on_evaluation(run, {"episode_return": 1.0, "evaluation_episodes": 5})
        assert callback.best == Rank(True, 1.0)


def total_of(records: list[dict[str, float]]) -> float:
    """Prefers large squares."""
    return sum(record["episode_return"] ** 2 for record in records) / len(records)


def test_numbers_of_numpy_are_kept_as_json_has_them(tmp_path: pathlib.Path) -> None:
    """A launched program keeps the states of callbacks as JSON, and ended where another one added a float32."""
    callback = keep_best(total_of)
    run = RunView(Experiment(), "evaluator", tmp_path, lambda: 1, get_params=lambda: policy_of(1))
    callback.on_start(run, None)
    record = {"episode_return": np.float64(2.0), "speed": np.float32(0.5), "laps": np.int64(3), "episodes": 1}
    callback.on_evaluation_episode(run, Episode(None, record, {}))
    callback.on_evaluation(run, {"episode_return": 2.0, "evaluation_episodes": 1})
    (evaluation,) = json.loads(json.dumps(callback.save()))["recent"].values()
    assert evaluation["records"]["0"] == {"episode_return": 2.0, "speed": 0.5, "laps": 3, "episodes": 1}


def test_the_score_may_be_another_one(tmp_path: pathlib.Path) -> None:
    evaluations = [[4.0] * 5, [0.0, 0.0, 0.0, 0.0, 10.0], [3.0, 7.0, 7.0, 7.0, 7.0]]
    assert judge(tmp_path / "mean", keep_best(), evaluations) == [1, 1, 3]
    assert judge(tmp_path / "least", keep_best("episode_return_min"), evaluations) == [1, 1, 1]
    assert judge(tmp_path / "own", keep_best(total_of), evaluations) == [1, 2, 3]
    found = read_best(tmp_path / "own")
    assert found is not None and found.state["best"]["score"] == (9 + 4 * 49) / 5
    # What another score has kept is no measure: the first of this one takes its place.
    assert judge(tmp_path / "own", keep_best("episode_return_min"), [[-5.0] * 5], start=7) == [8]
    with pytest.raises(UnknownNameError, match="Did you mean 'episode_return'"):
        judge(tmp_path / "none", keep_best("episode_retrun"), evaluations)
    for bad in ({"score": 3}, {"min_episodes": 0}, {"min_episodes": True}):
        with pytest.raises(ConfigError, match="keep_best: expected"):
            keep_best(**bad)  # type: ignore[arg-type]
    assert Rank(True, -1.0) > Rank(False, 5.0) > Rank(False, 4.0)


def test_it_comes_after_those_that_add_what_it_judges_by(tmp_path: pathlib.Path) -> None:
    """Where a score is given. The return is added by nobody: those behind find the newest best policy in the run."""
    settings: Any = {"hidden_sizes": (4,), "evaluation_period": 10, "evaluation_episodes": 1}
    agentkit.train("dqn", "agentkit:catch", 10, run_directory=tmp_path / "run", callbacks=[Margin()], **settings)
    found = callback_record.rebuild(read_record(tmp_path / "run"), tmp_path / "run", ("tests",))
    assert [type(callback) for callback in found] == [KeepBest, Margin]
    words = ["train", "--resume", str(tmp_path / "run"), "--steps", "20", "--best-score", "margin", "--import", "tests"]
    assert main(words) == 0
    best = read_best(tmp_path / "run")
    assert best is not None and best.state["best"]["score_name"] == "margin" and best.state["best"]["score"] >= 1.0
