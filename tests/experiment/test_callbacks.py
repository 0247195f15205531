"""Callbacks in one process: which are called when, how they end a run, and what a resume makes of them."""

import dataclasses
import json
import math
import pathlib
import sys
import types
import warnings
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import callbacks, checkpoint, evaluate, iterate, load
from agentkit.agents import bc, dqn
from agentkit.callbacks import (
    Callback,
    curriculum,
    info_metrics,
    keep_best,
    prune,
    stop_at,
    stop_when_flat,
)
from agentkit.callbacks.base import RunView
from agentkit.callbacks.best import METRICS
from agentkit.datasets.episodes import Episode
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import (
    ExperimentConfig,
    MultiAgentConfig,
    OfflineConfig,
    ResumeError,
    local,
    resume,
    run,
    run_offline,
)
from agentkit.experiment.config.callback_record import MissingCallbackWarning
from agentkit.experiment.evaluation.evaluate import summarise
from agentkit.loggers import read_csv
from tests.experiment.own_callbacks import Count, OwnError, fail_on, grow, make_scaled, stop_on

SMALL = dqn.Config(hidden_sizes=(4,), batch_size=4, min_replay_size=10, replay_size=200, n_step=1)


def make_experiment(directory: pathlib.Path | None = None, **settings: Any) -> ExperimentConfig:
    given = {
        "environment": make_scaled,
        "num_steps": 60,
        "evaluation_period": 20,
        "evaluation_episodes": 2,
        "checkpoint_period": 0,
        "log_seconds": 0.0,
        "run_directory": directory,
    }
    return ExperimentConfig(dqn.make_agent(SMALL), **(given | settings))


def make_offline(directory: pathlib.Path | None = None, **settings: Any) -> OfflineConfig:
    observations = np.zeros((4, 4, 3), np.float32)
    ended = np.array([False, False, True])
    episode = Episode(observations, np.array([0, 1, 2], np.int32), np.zeros(3), ended, np.zeros(3, bool))
    given = {"num_updates": 40, "evaluation_period": 10, "evaluation_episodes": 1, "run_directory": directory}
    agent = bc.make_agent(bc.Config(hidden_sizes=(4,), batch_size=2))
    return OfflineConfig(agent, [episode] * 2, environment=make_scaled, **(given | {"log_seconds": 0.0} | settings))


def saved(directory: pathlib.Path) -> dict[str, Any]:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found.state


def rows(directory: pathlib.Path, log: str) -> list[dict[str, str]]:
    return [
        {name: value for name, value in row.items() if "second" not in name}
        for row in read_csv(directory / "logs" / f"{log}.csv")[1]
    ]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("half", "num_envs"), [(30, None), (31, None), (30, 2)], ids=["between-episodes", "mid-episode", "batched"]
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: pathlib.Path, half: int, num_envs: int | None) -> None:
    def own() -> list[Callback]:
        return [keep_best(), stop_when_flat(100, min_delta=100), curriculum(grow), Count(), info_metrics("is_success")]

    for name, ends in (("whole", [60]), ("parts", [half, 60])):
        for steps in ends:
            experiment = make_experiment(tmp_path / name, num_steps=steps, num_envs=num_envs, evaluation_period=10)
            run(experiment, resume=steps != ends[0], callbacks=own())
    whole, parts = (saved(tmp_path / name) for name in ("whole", "parts"))
    assert whole["callbacks"] == parts["callbacks"]
    assert whole["callbacks"]["StopWhenFlat"]["without_progress"] == 5 and whole["callbacks"]["Count"]["total"] != 0
    assert max(whole["callbacks"]["Curriculum"]["steps"]) > 50
    for path, leaf in whole["learner"]["state"].items():
        np.testing.assert_array_equal(leaf, parts["learner"]["state"][path], err_msg=path)
    for log in ("train", "evaluation"):
        assert rows(tmp_path / "whole", log) == rows(tmp_path / "parts", log) != []
    levels = [float(row["curriculum_level"]) for row in rows(tmp_path / "whole", "train")]
    assert levels == sorted(levels) and levels[0] == 1 < levels[-1]
    bests = [callbacks.read_best(tmp_path / name) for name in ("whole", "parts")]
    assert bests[0].step == bests[1].step
    assert (bests[0].path / "arrays.npz").read_bytes() == (bests[1].path / "arrays.npz").read_bytes()


@pytest.mark.parametrize(
    ("event", "num_envs"),
    [("on_start", None), ("on_step", None), ("on_step", 2), ("on_episode", 2), ("on_evaluation", None)],
)
def test_stop_ends_a_run_well(tmp_path: pathlib.Path, event: str, num_envs: int | None) -> None:
    result = run(make_experiment(tmp_path / "run", num_envs=num_envs), callbacks=[stop_on(event)])
    assert result.stopped_by == f"enough of {event}" and not result.interrupted
    assert result.steps < 60 and saved(tmp_path / "run")["num_steps"] == result.steps
    if event == "on_step":
        assert result.steps == (num_envs or 1)


@pytest.mark.parametrize("event", ["on_learner_log", "on_evaluation"])
def test_stop_ends_a_run_from_data(tmp_path: pathlib.Path, event: str) -> None:
    result = run_offline(make_offline(tmp_path / "run"), callbacks=[stop_on(event), keep_best()])
    assert result.stopped_by == f"enough of {event}" and 0 < result.steps < 40
    assert saved(tmp_path / "run")["num_steps"] == result.steps
    assert result.policy(np.zeros((4, 3), np.float32))[0].shape == ()


@pytest.mark.filterwarnings("ignore::agentkit.experiment.config.callback_record.MissingCallbackWarning")
@pytest.mark.parametrize("event", ["on_start", "on_step", "on_evaluation_episode", "on_checkpoint", "on_end"])
def test_a_callback_that_fails_ends_the_run_with_its_own_error_and_a_checkpoint(
    tmp_path: pathlib.Path, event: str
) -> None:
    spared = Count()
    with pytest.raises(OwnError, match="on purpose") as error:
        run(make_experiment(tmp_path / "run"), callbacks=[fail_on(event), spared])
    assert any(f"At.{event} at step" in note for note in error.value.__notes__)
    assert any(entry.name == "own_callbacks.py" for entry in (each.path for each in error.traceback))
    steps = saved(tmp_path / "run")["num_steps"]
    assert steps == 60 if event in ("on_end", "on_checkpoint") else steps < 60
    if event == "on_step":
        again = run(make_experiment(tmp_path / "run"), resume=True, callbacks=[Count()])
        assert again.steps == 60 and again.stopped_by is None


def test_a_run_without_callbacks_calls_nothing_at_a_step() -> None:
    for own, observers in (([], 0), ([stop_at(5.0), stop_when_flat(3)], 0), ([Count()], 1)):
        with local.started(make_experiment(callbacks=own), False) as (training, _):
            work: Any = training.work
            assert len(work.loop._observers) == observers


def test_each_event_is_told_what_it_should_be(tmp_path: pathlib.Path) -> None:
    counted = Count(start=10)
    run(make_experiment(tmp_path / "run", checkpoint_period=30), callbacks=[counted])
    assert counted.counts == {"start": 11, "step": 70, "episode": 30, "evaluation": 13}
    assert [row["evaluations"] for row in rows(tmp_path / "run", "evaluation")] == ["11", "12", "13"]
    assert [row["total"] for row in rows(tmp_path / "run", "train")][-1] == str(counted.total)


def test_the_best_policy_is_kept_and_read_back(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "run"
    returns = iter([1.0, 5.0, 5.0, 3.0])
    params: list[Any] = []

    class Pretend(Callback):
        """Gives evaluations returns, and notes the parameters that they were with."""

        def on_evaluation(self, run: Any, record: dict[str, Any]) -> None:
            record["episode_return"] = next(returns)
            params.append(run.get_params())

    experiment = make_experiment(directory, num_steps=80, checkpoint_period=20, keep_checkpoints=3)
    result = run(experiment, callbacks=[Pretend(), keep_best()])
    assert callbacks.read_best(directory).step == 40  # Of equal ones the first.
    assert [path.name for path in (directory / "best").glob("step_*")] == ["step_000000000040"]
    board = np.random.default_rng(0).random((4, 3), np.float32)
    best, newest, older = (load(directory, checkpoint=which) for which in ("best", "newest", 60))
    expected = np.concatenate([leaf.ravel() for leaf in _leaves(params[1])])
    assert np.array_equal(np.concatenate([leaf.ravel() for leaf in _leaves(best.arrays)]), expected)
    assert not np.array_equal(np.concatenate([leaf.ravel() for leaf in _leaves(newest.arrays)]), expected)
    assert np.array_equal(_leaves(older.arrays)[0], _leaves(params[2])[0])
    assert result.best_policy(board)[0] == best(board)[0] and result.policy(board)[0] == newest(board)[0]
    assert np.array_equal(_leaves(result.policy.arrays)[0], _leaves(newest.arrays)[0])
    assert [evaluate(directory, 1, checkpoint=which)["steps"] for which in ("best", "newest", "60")] == [40, 80, 60]
    assert checkpoint.steps(directory / "checkpoints") == [40, 60, 80]
    with pytest.raises(ConfigError, match=r"step 41\. It has those of: 40, 60, 80"):
        load(directory, checkpoint=41)
    with pytest.raises(ConfigError, match="expected 'newest', 'best' or a step, found 'bets'"):
        load(directory, checkpoint="bets")


def _leaves(params: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def test_without_a_folder_the_newest_policy_is_in_memory() -> None:
    result = run(make_experiment(evaluation_period=0))
    action, state = result.policy(np.zeros((4, 3), np.float32))
    assert action in (0, 1, 2) and result.policy is result.policy and state is not None
    with pytest.raises(ConfigError, match="no run folder to read its best policy"):
        _ = result.best_policy


def test_success_comes_from_info_into_the_logs(tmp_path: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match=r"expected \['absent'\] in info .* none of \d+, which had .*'is_success'"):
        result = run(make_experiment(tmp_path / "run", num_envs=2), callbacks=[info_metrics("is_success", "absent")])
    for row in rows(tmp_path / "run", "train"):
        assert float(row["is_success"]) == float(float(row["episode_return"]) == 1)
    for row in result.evaluations:
        assert row["is_success"] == (row["episode_return"] + 1) / 2 and "absent" not in row
    with pytest.raises(ConfigError, match="columns of the logs already"):
        info_metrics("steps")
    with pytest.raises(SpecError, match=r"one number as info\['is_success'\], found array"):
        callbacks.metrics._number("is_success", np.zeros(2))


def test_stopping_by_evaluations() -> None:
    def answers(callback: Any, returns: list[float]) -> list[bool]:
        return [callback.on_evaluation(None, {"episode_return": value}) is not None for value in returns]

    assert answers(stop_at(return_above=4), [3.9, 4.0, 5.0]) == [False, True, True]
    assert answers(stop_when_flat(2), [1, 1, 2, 2, 1.5]) == [False, False, False, False, True]
    assert answers(stop_when_flat(2), [3, 1, 1, 1, 2, 1]) == [False, False, True, False, True, False]  # Resumed twice.
    assert answers(stop_when_flat(1, min_delta=1), [1, 2, 3.5]) == [False, True, False]
    nan = math.nan  # It is no progress, wherever it comes, and never what others have to beat.
    assert answers(stop_when_flat(2), [nan, -7, -6, -5, nan, nan]) == [False, False, False, False, False, True]
    assert answers(stop_when_flat(2), [nan, nan, nan]) == [False, False, True]
    stopped = run(make_experiment(), callbacks=[stop_at(return_above=-10)])
    assert stopped.steps == 20 and "reached -10" in str(stopped.stopped_by)
    flat = stop_when_flat(1, min_delta=100)
    assert [run(make_experiment(), callbacks=[flat]).steps for _ in range(2)] == [40, 40]  # It forgets the first run.


def test_where_one_wins_what_another_loses_a_run_stops_by_the_return_of_one() -> None:
    def answers(callback: Any, returns: list[float]) -> list[bool]:
        records = [{"episode_return": 0.0, "episode_return/a": own, "episode_return/b": -own} for own in returns]
        return [callback.on_evaluation(None, record) is not None for record in records]

    rising = [-1.0, -0.5, 0.0, 1.0]
    assert answers(stop_when_flat(3), rising) == [False, False, False, True]
    assert answers(stop_when_flat(3, return_of="a"), rising) == [False] * 4
    assert answers(stop_when_flat(3, return_of="b"), rising) == [False, False, False, True]
    assert answers(stop_at(0.0, return_of="a"), rising) == [False, False, True, True]
    for make in (stop_at, stop_when_flat):
        with pytest.raises(UnknownNameError, match="agent in return_of 'c'"):
            answers(make(1, return_of="c"), rising)
        with pytest.raises(ConfigError, match="return_of: 'a' is one of several agents, and this run has one"):
            make(1, return_of="a").on_evaluation(None, {"episode_return": 0.0})
        plan = MultiAgentConfig(
            {"own": dqn.make_agent()}, "agentkit:tic_tac_toe", 9, policy_of=dict.fromkeys("ab", "own")
        )
        with pytest.raises(UnknownNameError, match="agent in return_of 'c'"):
            make(1, return_of="c").check(plan)


def test_a_folder_rebuilds_its_callbacks_or_says_why_not(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "run"
    run(make_experiment(directory, num_steps=20), callbacks=[curriculum(grow), Count(start=3), stop_at(1e9)])
    entries = json.loads((directory / "config.json").read_text())["callbacks"]
    assert [entry["changes_training"] for entry in entries] == [True, False, False]
    assert resume(directory, num_steps=40).steps == 40
    assert saved(directory)["callbacks"]["Count"]["counts"]["step"] == 43
    with pytest.raises(ResumeError, match=r"callbacks that change the training: Curriculum.*has none"):
        run(make_experiment(directory), resume=True)
    with pytest.warns(MissingCallbackWarning) as told:
        assert resume(directory, num_steps=60, callbacks=[curriculum(grow)]).steps == 60
    assert [str(each.message).split(",")[0].rpartition(" ")[2] for each in told] == ["Count", "StopAt"]


def test_callbacks_that_no_name_finds_are_refused_where_the_folder_alone_is_there(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "run"
    level = curriculum(lambda steps, environment: grow(steps, environment))
    run(make_experiment(directory, num_steps=20), callbacks=[level, stop_on("on_end")])
    with pytest.raises(
        ConfigError, match=r"Curriculum.set_level is a lambda; At is tests.*callbacks=\[\.\.\.\]\) with the same"
    ):
        resume(directory, num_steps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingCallbackWarning)
        with pytest.raises(ResumeError, match="change the training"):
            resume(directory, num_steps=40, callbacks=[])
        assert resume(directory, num_steps=40, callbacks=[level]).steps == 40
    assert load(directory) is not None  # Who only acts needs no callbacks.


@pytest.mark.parametrize("make", [make_experiment, make_offline])
def test_a_run_is_iterated_over(tmp_path: pathlib.Path, make: Any) -> None:
    training = iterate(make(tmp_path / "run"))
    found = list(training)
    logs = {progress.log for progress in found}
    assert logs == ({"train", "learner", "evaluation"} if make is make_experiment else {"learner", "evaluation"})
    evaluations = [progress.record for progress in found if progress.log == "evaluation"]
    assert training.result is not None and training.result.evaluations == evaluations
    assert [int(row["steps"]) for row in evaluations] == [
        int(row["steps"]) for row in rows(tmp_path / "run", "evaluation")
    ]

    for progress in iterate(make(tmp_path / "left")):
        if progress.log == "evaluation":
            break
    at_break = saved(tmp_path / "left")["num_steps"]
    assert at_break == evaluations[0]["steps"]
    left = iterate(make(tmp_path / "left"), resume=True)
    assert {progress.log for progress in left} == logs  # It was closed: else its lock would refuse this.
    ends = [saved(tmp_path / name)["learner"]["state"] for name in ("run", "left")]
    assert all(np.array_equal(ends[0][path], ends[1][path]) for path in ends[0])


def test_what_is_no_callback_is_refused_before_anything_is_there(tmp_path: pathlib.Path) -> None:
    class Misspelt(Callback):
        def on_evalution(self, run: Any, record: Any) -> None: ...

    class OfSB3(Callback):
        def _on_step(self) -> bool:
            return True

    class Answers(Callback):
        def on_step(self, run: Any, step: Any) -> bool:
            return True

    directory = tmp_path / "run"
    for given, error, message in (
        ([Misspelt()], UnknownNameError, "Did you mean 'on_evaluation'"),
        ([OfSB3()], ConfigError, r"OfSB3 for an event .* found none, .* Write on_step in the place of _on_step"),
        ([[].append], ConfigError, "Write a class with a method such as on_episode"),
        ([keep_best], ConfigError, r"Call it: keep_best\(\)"),
        ([print], ConfigError, "subclasses of agentkit.callbacks.Callback"),
        (keep_best(), ConfigError, r"Write callbacks=\[\.\.\.\]"),
    ):
        with pytest.raises(error, match=message):
            run(make_experiment(directory), callbacks=given)
    with pytest.raises(ConfigError, match="evaluation_period=0 makes none"):
        run(make_experiment(directory, evaluation_period=0), callbacks=[keep_best()])
    with pytest.raises(UnknownNameError, match=r"metric of an evaluation 'episode_retrun'.*'episode_return'"):
        run(make_experiment(directory), callbacks=[keep_best("episode_retrun"), stop_at(5.0)])
    for each in (stop_at(0.0), stop_when_flat(), prune(Trial(1))):
        each.check(make_experiment(evaluation_period=60))
        with pytest.raises(ConfigError, match="with one every 61 the run ends, at 60, before there is any"):
            each.check(make_experiment(evaluation_period=61))
    with pytest.raises(ConfigError, match="give the experiment a run_directory"):
        run(make_experiment(), callbacks=[keep_best()])
    assert not directory.exists()
    with pytest.raises(ConfigError, match=r"Answers.on_step returned True; expected None, or Stop"):
        run(make_experiment(), callbacks=[Answers()])
    for bad in (
        lambda: stop_at(float("nan")),
        lambda: stop_when_flat(0),
        lambda: curriculum(3),
        lambda: info_metrics(),
    ):
        with pytest.raises(ConfigError):
            bad()


def test_a_score_that_another_callback_may_add_is_not_refused() -> None:
    record = {"episode_return": 1.0, "episode_length": 2}
    assert set(METRICS) == set(summarise([record]))
    adds = type("Adds", (Callback,), {"on_evaluation": lambda self, run, record: None})()
    best = keep_best("is_success")
    for other in (info_metrics("is_success"), adds):
        best.check(make_experiment(pathlib.Path("run"), callbacks=[best, other]))


@dataclasses.dataclass
class Trial:
    """Optuna's trial, as far as it is asked."""

    prune_at: int
    reports: dict[int, float] = dataclasses.field(default_factory=dict)

    def report(self, value: float, step: int) -> None:
        self.reports[step] = value

    def should_prune(self) -> bool:
        return max(self.reports) >= self.prune_at


def test_optuna_is_told_of_evaluations_and_prunes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, pruned = Trial(1000), Trial(40)
    assert run(make_experiment(), callbacks=[prune(kept)]).stopped_by is None
    assert list(kept.reports) == [20, 40, 60]
    monkeypatch.setitem(sys.modules, "optuna", types.SimpleNamespace(TrialPruned=OwnError))
    with pytest.raises(OwnError, match="Pruned at step 40; the run is saved"):
        run(make_experiment(tmp_path / "run"), callbacks=[prune(pruned)])
    assert list(pruned.reports) == [20, 40] and saved(tmp_path / "run")["num_steps"] == 40


@pytest.mark.parametrize("period", [1_000, None])  # Ten evaluations, if nothing is said.
def test_optuna_compares_trials_of_any_number_of_environments_at_the_steps_at_which_evaluations_were_due(
    period: int | None,
) -> None:
    experiment = types.SimpleNamespace(num_steps=10_500 if period is None else 2_500, evaluation_period=period)
    period = period or 1_050
    for steps in ((1, 2), (1.003, 2.04), (1, 2, 2.2)):
        callback = prune(trial := Trial(100_000))
        for step in (*(int(step * period) for step in steps), experiment.num_steps + 3):
            state, callback = callback.save(), prune(trial)  # As of a run that goes on.
            callback.restore(state)
            callback.on_evaluation(RunView(experiment, "run", None, lambda step=step: step), {"episode_return": 1.0})
        own = [int(step * period) for step in steps[2:]]  # A second one of a period.
        assert list(trial.reports) == [period, 2 * period, *own, experiment.num_steps]


def test_a_study_of_optunas_goes_on_after_a_pruned_run() -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=-100.0))
    study.optimize(lambda trial: run(make_experiment(), callbacks=[prune(trial)]).steps, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED"] * 2
    assert [list(trial.intermediate_values) for trial in study.trials] == [[20]] * 2
