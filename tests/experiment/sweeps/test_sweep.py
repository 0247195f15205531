"""Sweeps: every point once, whatever is killed; poor trials given up; the same trials again from the same seed."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.errors import ConfigError
from agentkit.experiment.sweeps import Choice, Interval, SweepPlan, jobs, run, run_sweep
from agentkit.experiment.sweeps.metrics import metric_of, reports
from agentkit.experiment.sweeps.space import draw, grid
from agentkit.experiment.sweeps.trials import SweepFolder
from agentkit.loggers import CsvLogger, read_csv
from tests.experiment.sweeps.curves import Curves

SPACE = {"learning_rate": Interval(1e-4, 1e-1, log=True), "batch_size": Choice((8, 16, 32))}
METHODS = ["random", "tpe"]


def make_experiment(parameters):
    if parameters.get("batch_size") == 13:
        raise ConfigError("batch_size=13 brings bad luck.")
    agent = dqn.make_agent(dqn.Config(**parameters))
    return agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=40, evaluation_period=10)


def curve(experiment, steps):
    """Grows with the steps, and is best for large learning rates; a seed shifts it."""
    return steps * experiment.agent.config.learning_rate + experiment.seed


def plan(method="random", **settings):
    if method == "tpe":
        pytest.importorskip("optuna")
    usual = {"space": SPACE, "make_experiment": make_experiment, "method": method}
    if method == "tpe":
        usual["startup_trials"] = 3
    return SweepPlan(**{**usual, "num_trials": 8, "pruner": "none", **settings})


def sweep(monkeypatch, folder, the_plan, num_jobs=1, events=None, learning=curve):
    events = [] if events is None else events
    monkeypatch.setattr(run, "JobProcesses", Curves(learning, events))
    monkeypatch.setattr(run, "wait_a_little", lambda: None)
    return run_sweep(the_plan, folder, num_jobs)


def settings_of(result):
    return [record.parameters for record in result.trials]


def test_a_grid_is_tried_whole_and_the_best_is_found(tmp_path, monkeypatch):
    space = {"learning_rate": Interval(1e-3, 1e-1, log=True, num=3), "batch_size": Choice((8, 16))}
    result = sweep(monkeypatch, tmp_path / "s", plan("grid", space=space, num_trials=None, seeds=[0, 4]), num_jobs=3)
    assert settings_of(result) == list(grid(space)) and len(result.trials) == 6 and result.ended
    assert result.best.parameters == {"learning_rate": pytest.approx(0.1), "batch_size": 8}
    assert result.best.value == pytest.approx(40 * 0.1 + 2)  # The mean of two seeds.
    columns, rows = read_csv(tmp_path / "s" / "results.csv")
    assert columns == ["trial", "state", "value", "learning_rate", "batch_size"] and len(rows) == 6
    assert (tmp_path / "s" / "trial-0005" / "seed4" / "outcome.json").exists()


def test_a_sweep_whose_runs_end_before_an_evaluation_is_refused(tmp_path, monkeypatch):
    def searched(parameters):
        return dataclasses.replace(make_experiment({}), evaluation_period=parameters["period"])

    for first, words in ((41, "one every 41 the run ends, at 40"), (0, "evaluation_period=0 makes none")):
        none = plan("grid", space={"period": Choice((first,))}, make_experiment=searched, num_trials=None)
        with pytest.raises(ConfigError, match=words):
            sweep(monkeypatch, tmp_path / "none", none)
    assert not (tmp_path / "none").exists()
    some = plan("grid", space={"period": Choice((41, 40))}, make_experiment=searched, num_trials=None)
    late, good = sweep(monkeypatch, tmp_path / "some", some).trials
    assert good.state == "complete" and "one every 41 the run ends, at 40" in late.error


def test_what_will_not_happen_in_short_trials_is_said_once(tmp_path, monkeypatch):
    """Their runs' own output is in files that nobody reads while a sweep runs."""
    space = {"min_replay_size": Choice((10, 41, 42)), "batch_size": Choice((8, 16))}
    said = []
    watcher = run.Silence()
    watcher.message = said.append
    monkeypatch.setattr(run, "JobProcesses", Curves(lambda experiment, steps: 0.0, []))
    monkeypatch.setattr(run, "wait_a_little", lambda: None)
    run_sweep(plan("grid", space=space, num_trials=None), tmp_path / "s", 1, watcher)
    short = [line.partition(". Give")[0] for line in said if "learn nothing" in line]
    assert short == [
        "trial 2: dqn will learn nothing in 40 steps: it begins after about 41",
        "trial 4: dqn will learn nothing in 40 steps: it begins after about 42",
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_sweep_goes_on_where_it_was_and_counts_nothing_twice(tmp_path, monkeypatch, method):
    whole = sweep(monkeypatch, tmp_path / "whole", plan(method))
    for deadly in (2, 5):  # Killed in the middle of a run; then between a trial's end and its telling.
        events = []

        def learning(experiment, steps, deadly=deadly, events=events):
            if steps == 30 and len([event for event in events if event[0] == "start"]) == deadly:
                raise KeyboardInterrupt
            return curve(experiment, steps)

        with pytest.raises(KeyboardInterrupt):
            sweep(monkeypatch, tmp_path / "killed", plan(method), events=events, learning=learning)
    resumed = sweep(monkeypatch, tmp_path / "killed", plan(method))
    assert resumed.trials == whole.trials and len(whole.trials) == 8
    assert len({json.dumps(parameters) for parameters in settings_of(whole)}) == 8
    more = sweep(monkeypatch, tmp_path / "killed", plan(method, num_trials=9))
    assert more.trials[:8] == whole.trials and len(more.trials) == 9


def test_a_trial_that_was_proposed_and_never_begun_is_taken_up(tmp_path, monkeypatch):
    the_plan = plan("tpe", num_trials=3)
    whole = sweep(monkeypatch, tmp_path / "whole", the_plan)
    folder = run.SweepFolder(tmp_path / "killed")
    proposed = run.make_suggester(the_plan, folder).propose(set())
    with open(tmp_path / "killed" / "optuna.log", "ab") as journal:
        journal.write(b'{"op_code": 6, "wor')  # A kill in the middle of a line.
    resumed = sweep(monkeypatch, tmp_path / "killed", the_plan)
    assert resumed.trials == whole.trials and proposed == (0, whole.trials[0].parameters)


def test_poor_trials_are_given_up_and_stopped(tmp_path, monkeypatch):
    space = {"learning_rate": Interval(1e-4, 1e-1, log=True)}
    events = []
    the_plan = plan("tpe", space=space, num_trials=12, pruner="median", prune_after=15)
    result = sweep(monkeypatch, tmp_path, the_plan, events=events)
    pruned = [record for record in result.trials if record.state == "pruned"]
    assert pruned and all(record.number >= 3 for record in pruned)  # None of the first.
    assert result.best.value == max(record.value for record in result.trials)
    assert {name for kind, name in events if kind == "stop"} == {f"trial {record.number} seed 0" for record in pruned}
    for record in pruned:
        rows = jobs.read_evaluations(tmp_path / f"trial-{record.number:04}" / "seed0")
        assert 2 <= len(rows) < 4  # Not at the first evaluation, and not after the last.
    again = sweep(monkeypatch, tmp_path, the_plan)
    assert again.trials == result.trials


def test_a_pruned_seed_is_the_first_and_the_second_never_starts(tmp_path, monkeypatch):
    events = []
    the_plan = plan(
        "tpe", num_trials=12, pruner="median", seeds=[0, 1], space={"learning_rate": SPACE["learning_rate"]}
    )
    result = sweep(monkeypatch, tmp_path, the_plan, events=events)
    pruned = [record.number for record in result.trials if record.state == "pruned"]
    assert pruned and not {f"trial {number} seed 1" for number in pruned} & {name for _, name in events}


def test_a_trial_that_a_resumed_sweep_gives_up_has_its_newest_return(tmp_path, monkeypatch):
    def learning(experiment, steps):
        if experiment.run_directory.parent.name != "trial-0003":
            return 100.0
        if steps == 10:
            raise KeyboardInterrupt
        return float(steps)

    the_plan = plan("tpe", num_trials=4, pruner="median")
    with pytest.raises(KeyboardInterrupt):
        sweep(monkeypatch, tmp_path, the_plan, learning=learning)
    with CsvLogger(tmp_path / "trial-0003" / "seed0" / "logs" / "evaluation.csv") as log:
        for steps in (10, 20):  # Written, and not yet looked at by what was killed.
            log.write({"steps": steps, "episode_return": float(steps)})
    resumed = sweep(monkeypatch, tmp_path, the_plan, learning=learning)
    assert (resumed.trials[3].state, resumed.trials[3].value) == ("pruned", 30.0)


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_the_first_trials_are_safe_and_the_others_up_to_a_step(tmp_path, pruner):
    """Each is worse than those before it, and is judged by them, also by those that are safe."""
    the_plan = plan("tpe", pruner=pruner, prune_after=4_000)
    study = run.make_suggester(the_plan, run.SweepFolder(tmp_path))
    given_up = {}
    for _ in range(8):
        number, parameters = study.propose(set())
        steps = range(2_000, 20_001, 2_000)
        poor = [step for step in steps if study.report(number, step, -float(number))]
        given_up[number] = min(poor, default=None)
        assert not poor or study.report(number, poor[0], -float(number))  # As a resumed sweep asks again.
        study.tell(run.TrialRecord(number, parameters, "pruned" if poor else "complete", -float(number)))
    assert given_up == {number: None if number < 3 else 4_000 for number in range(8)}


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_trial_that_has_taken_all_its_steps_is_not_given_up(tmp_path, monkeypatch, seeds):
    """The others come to more at the end, and this one to the best mean."""

    def learning(experiment, steps):
        if experiment.run_directory.parent.name == "trial-0003":
            return 50.0
        return 60.0 * len(seeds) if steps == 40 and experiment.seed == seeds[-1] else 0.0

    the_plan = plan("tpe", num_trials=4, pruner="median", metric="mean", seeds=seeds)
    result = sweep(monkeypatch, tmp_path, the_plan, learning=learning)
    assert [record.state for record in result.trials] == ["complete"] * 4
    assert result.best.number == 3 and result.best.value == 50.0


def test_a_failing_trial_stops_no_other_and_three_stop_all(tmp_path, monkeypatch):
    space = {"batch_size": Choice((8, 13, 16))}
    result = sweep(monkeypatch, tmp_path / "one", plan("grid", space=space, num_trials=None))
    assert [record.state for record in result.trials] == ["complete", "failed", "complete"]
    assert "bad luck" in result.trials[1].error
    events = []
    with pytest.raises(ConfigError, match="first 3 trials have all failed, the last with: batch_size=13"):
        unlucky = plan(space={"batch_size": Choice((13,))})
        sweep(monkeypatch, tmp_path / "all", unlucky, events=events)
    assert not events


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_whose_return_is_no_number_has_failed_and_the_others_go_on(tmp_path, monkeypatch, method):
    def learning(experiment, steps):
        return float("nan") if experiment.agent.config.batch_size == 8 else float(steps)

    space = {"batch_size": Choice((8, 16)), "learning_rate": SPACE["learning_rate"]}
    folder, the_plan = tmp_path / "s", plan(method, space=space, num_trials=6, metric="mean")
    result = sweep(monkeypatch, folder, the_plan, learning=learning)
    assert {(record.parameters["batch_size"], record.state) for record in result.trials} == {
        (8, "failed"),
        (16, "complete"),
    }
    assert result.best.value == 25.0
    assert all("expected a finite number" in record.error for record in result.trials if record.state == "failed")
    assert sweep(monkeypatch, folder, the_plan).trials == result.trials


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_in_which_such_a_trial_is_complete_goes_on(tmp_path, monkeypatch, method):
    """As older versions wrote it, before the study was told."""
    folder = run.SweepFolder(tmp_path / "s")
    number, parameters = run.make_suggester(plan(method), folder).propose(set())
    written = run.TrialRecord(number, parameters, "complete", float("nan"))
    folder.write(written)
    result = sweep(monkeypatch, folder.path, plan(method, num_trials=3))
    assert [record.state for record in result.trials] == ["failed", "complete", "complete"] and result.ended
    assert run.best_of([written, *result.trials]) == result.best


def test_another_sweep_in_the_folder_is_refused(tmp_path, monkeypatch):
    sweep(monkeypatch, tmp_path, plan(num_trials=1, key={"method": "random", "env": "a"}))
    with pytest.raises(ConfigError, match="a sweep with another 'env'"):
        sweep(monkeypatch, tmp_path, plan(num_trials=1, key={"method": "random", "env": "b"}))


def test_a_folder_whose_file_spoke_of_pruning_for_nothing_goes_on_without_it(tmp_path):
    SweepFolder(tmp_path).begin(plan(key={"method": "random", "pruner": "median", "prune_after": 9}))
    SweepFolder(tmp_path).begin(plan(key={"method": "random"}))
    with pytest.raises(ConfigError, match="a sweep with another 'method'"):
        SweepFolder(tmp_path).begin(plan(key={"method": "grid"}))


@pytest.mark.parametrize(("method", "link"), [("tpe", "optuna.log"), ("random", "trial-0000")])
def test_nothing_is_written_through_a_link_in_a_strangers_folder(tmp_path, monkeypatch, method, link):
    folder, mine = tmp_path / "s", tmp_path / "mine"
    SweepFolder(folder).begin(plan(method))
    if link == "trial-0000":
        mine.mkdir()
    else:
        mine.write_text("a line\nanother, without an end")
    (folder / link).symlink_to(mine)
    with pytest.raises(ConfigError, match=f"{link} is a symbolic link to {mine}, and nothing is written out of"):
        sweep(monkeypatch, folder, plan(method))
    assert {path.name for path in folder.iterdir()} == {link, "sweep.json"}
    assert list(mine.iterdir()) == [] if mine.is_dir() else mine.read_text() == "a line\nanother, without an end"


def test_two_processes_never_take_the_same_trial(tmp_path, monkeypatch):
    """The locks of a process do not keep that process itself out, so the other one is a list of what is taken."""
    folder, the_plan = run.SweepFolder(tmp_path), plan(num_trials=3)
    folder.begin(the_plan)
    suggester = run.ListSuggester(the_plan)
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        taken = [folder.take(suggester, 3, stack) for stack in (first, second, second)]
        assert [record.number for record in taken] == [0, 1, 2]
        assert folder.take(suggester, 3, second) is None
        first.close()  # As the end of its process does.
        assert folder.take(suggester, 3, second).number == 0


def test_intervals_hold_what_is_drawn_from_them():
    space = {"a": Interval(1, 3, whole=True), "b": Interval(1e-3, 1e3, log=True), "c": Interval(-2, -1)}
    drawn = [draw(space, seed=0, number=number) for number in range(300)]
    assert {one["a"] for one in drawn} == {1, 2, 3} and type(drawn[0]["a"]) is int
    assert all(
        70 < sum(one["a"] == value for one in drawn) < 130 for value in (1, 2, 3)
    )  # Ends as often as the middle.
    assert all(1e-3 <= one["b"] <= 1e3 and -2 <= one["c"] <= -1 for one in drawn)
    assert 110 < sum(one["b"] < 1 for one in drawn) < 190  # Half of the powers.
    assert draw(space, 0, 7) == drawn[7] != draw(space, 1, 7)


def test_what_is_reported_does_not_depend_on_how_many_seeds_run_at_once():
    first, second = ([{"steps": step, "episode_return": value + step} for step in (10, 20)] for value in (0.0, 100.0))
    whole = reports([first, second], [True, True], 20)
    assert whole == [(10, 10.0), (20, 20.0), (30, 60.0), (40, 70.0)]
    for part in ([first, []], [first, second[:1]]):
        found = reports(part, [True, False], 20)
        assert found == whole[: len(found)]
    assert reports([first[:1], second], [False, False], 20) == whole[:1]  # The second waits for the first.


def test_runs_of_any_number_of_environments_are_compared_at_the_steps_at_which_they_were_to_evaluate():
    def steps_of(*steps, num_steps=20_000, period=2_000):
        record = [{"steps": step, "episode_return": 0.0} for step in steps]
        return [step for step, _ in reports([record, record], [True, True], num_steps, period)]

    assert steps_of(2_048, 4_032, 20_032)[:3] == [2_000, 4_000, 20_000] == steps_of(2_000, 4_000, 20_000)[:3]
    assert steps_of(24, 28, num_steps=25, period=2) == [24, 25, 49, 50]  # The last one does not hide behind another.
    assert steps_of(24, 25, num_steps=25, period=2) == [24, 25, 49, 50]
    assert steps_of(3, 16, 32, num_steps=30, period=10) == [3, 10, 30, 33, 40, 60]


def test_trials_of_several_numbers_of_environments_report_at_the_same_steps(tmp_path, monkeypatch):
    def searched(parameters):
        return dataclasses.replace(make_experiment({}), num_envs=parameters["num_envs"])

    the_plan = plan("tpe", space={"num_envs": Choice((1, 3, 8))}, make_experiment=searched, num_trials=6)
    result = sweep(monkeypatch, tmp_path, the_plan)
    from agentkit.experiment.sweeps import optuna_study

    study = optuna_study.optuna.load_study(study_name=optuna_study.STUDY, storage=optuna_study.open_storage(tmp_path))
    assert len({record.parameters["num_envs"] for record in result.trials}) > 1
    assert [list(trial.intermediate_values) for trial in study.trials] == [[10, 20, 30, 40]] * 6


@pytest.mark.parametrize(("metric", "value"), [("last", 2.0), ("best", 4.5), ("mean", 3.25)])
def test_metrics(metric, value):
    records = [records_of({10: first, 20: last}) for first, last in ((5.0, 1.0), (4.0, 3.0))]
    assert metric_of(records, metric, 20) == value


def test_a_seed_alone_is_no_best_of_a_trial():
    early, late = records_of({20: 10.0, 100: 1.0, 200: 1.0}), records_of({60: 0.0, 200: 1.0})
    for records in ([early, late], [late, early]):
        assert metric_of(records, "best", 200, 20) == 5.0


def records_of(returns):
    return [{"steps": step, "episode_return": value} for step, value in returns.items()]


def test_a_seed_that_leaves_evaluations_out_has_its_newest_return_beside_the_others():
    """Long episodes do, where evaluations are in proportion to the run; batches evaluate a little later besides."""
    few, all_ten = ({step: step / 10 for step in steps} for steps in ((20, 63, 100, 140, 180, 204), range(20, 201, 20)))
    means = [2.0, 3.0, 6.15, 7.15, 10.0, 11.0, 14.0, 15.0, 18.0, 20.2]
    for seeds in ([few, all_ten], [all_ten, few]):
        records = [records_of(returns) for returns in seeds]
        assert metric_of(records, "mean", 200, 20) == pytest.approx(np.mean(means))
        assert metric_of(records, "last", 200, 20) == pytest.approx(20.2)
        second = [due // 20 * 20 for due in seeds[1]]
        found = [(step - 200, value) for step, value in reports(records, [True, True], 200, 20) if step > 200]
        assert found == [(due, pytest.approx(means[due // 20 - 1])) for due in second]


@pytest.mark.parametrize(("metric", "value"), [("last", 490.0), ("best", 495.0), ("mean", 311.25)])
def test_a_seed_that_ended_early_keeps_its_last_return_beside_the_others(metric, value):
    """One that `stop_at_return` ended counts as solved, and the others by how they ended, not by how they were then."""
    early, late = [10.0, 500.0], [0.0, 10.0, 490.0, 480.0]
    records = [[{"steps": 10 * k, "episode_return": each} for k, each in enumerate(curve)] for curve in (early, late)]
    for one in (records, records[::-1]):
        assert metric_of(one, metric, 40) == value
    assert [each for _, each in reports(records, [True, True], 40)[2:]] == [5.0, 255.0, 495.0, 490.0]


def test_the_best_evaluation_of_a_trial_is_a_number_where_there_is_one():
    curve = records_of({10: float("nan"), 20: 3.0, 30: float("nan")})
    assert metric_of([curve], "best", 30) == 3.0
    assert all(np.isnan(metric_of([one], name, 30)) for one, name in ((curve, "last"), (curve[:1], "best")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": {}}, "at least one setting"),
        ({"num_trials": None}, "trials is missing"),
        ({"method": "tpee"}, "Did you mean 'tpe'"),
        ({"metric": "first"}, "Unknown metric"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"method": "grid", "space": {"x": Interval(0, 1)}}, "x: a grid needs"),
        ({"num_trials": 0}, "num_trials must be"),
        ({"pruner": "halving"}, 'pruner is of method "tpe", .*; found method "random". Leave pruner out'),
        ({"startup_trials": 2}, "startup_trials is of"),
        ({"prune_after": 100}, "prune_after is of"),
    ],
)
def test_impossible_plans_are_refused(settings, message):
    with pytest.raises((ConfigError, KeyError), match=message):
        dataclasses.replace(plan(), **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(2, 1), "low < high"),
        (lambda: Interval(0, 1, log=True), "low > 0"),
        (lambda: Interval(0, 1, num=1), "num of at least 2"),
        (lambda: Choice(()), "at least 1 value"),
        (lambda: Choice((1, 1)), "different values"),
    ],
)
def test_impossible_values_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
