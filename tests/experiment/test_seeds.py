"""Several seeds of one experiment: apart from each other, stopped together, and each as it would be alone."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.callbacks import curriculum, keep_best, stop_at
from agentkit.cli import main
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.callback_record import MissingCallbackWarning
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.sweeps import seeds
from agentkit.experiment.sweeps.job_process import run_job
from agentkit.experiment.sweeps.jobs import OUTPUT_FILE, Outcome, read_outcome, read_progress, write_outcome
from agentkit.experiment.sweeps.seeds import RunsFailedError, check_seeds, read_group, run_seeds
from agentkit.loggers import read_csv
from tests.experiment.own_callbacks import grow

AGENT = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=4, replay_size=500))


def experiment(folder, **settings):
    usual = {"environment": "agentkit:catch", "num_steps": 50, "run_directory": folder}
    return agentkit.ExperimentConfig(AGENT, **{**usual, **settings})


def returns(run):
    _, rows = read_csv(pathlib.Path(run) / "logs" / "train.csv")
    return [(row["steps"], row["episode_return"]) for row in rows]


def interrupt_when(condition):
    """Sends this process SIGINT, as Ctrl-C does, once a condition holds."""

    def wait():
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.full
def test_a_group_is_stopped_and_resumed_and_each_run_is_as_it_would_be_alone(tmp_path):
    mended = tmp_path / "mended"

    def troubled(seed):
        from agentkit.envs import make

        if seed == 1 and not mended.exists():
            raise RuntimeError("the robot is not plugged in")
        return make("agentkit:catch", seed=seed)

    plan = experiment(
        tmp_path / "group", environment=troubled, num_steps=10**6, checkpoint_period=100, evaluation_period=200,
        evaluation_episodes=2,
    )  # fmt: skip
    first, second = (tmp_path / "group" / f"seed{seed}" for seed in (0, 1))

    thread = interrupt_when(lambda: read_progress(first).steps >= 200 and read_outcome(second) is not None)
    with pytest.raises(RunsFailedError, match=r"1 of 2 runs failed\. seed 1: .*not plugged in") as caught:
        run_seeds(plan, [0, 1], jobs=2)
    thread.join()
    stopped, failed = caught.value.results
    assert (stopped.state, failed.state) == ("stopped", "failed") and stopped.steps >= 200
    assert "not plugged in" in (second / "output.log").read_text()

    mended.touch()
    shorter = dataclasses.replace(plan, num_steps=(stopped.steps // 100 + 2) * 100)
    results = run_seeds(shorter, [0, 1], jobs=2, resume=True)
    assert [(result.seed, result.state, result.steps) for result in results] == [
        (seed, "finished", shorter.num_steps) for seed in (0, 1)
    ]

    alone = agentkit.run(dataclasses.replace(shorter, run_directory=tmp_path / "alone"))
    assert returns(first) == returns(tmp_path / "alone") != returns(second)
    found = [{name: value for name, value in row.items() if name != "seconds"} for row in results[0].evaluations]
    assert found == alone.evaluations
    began = (first / "config.json").stat().st_mtime_ns
    assert [result.state for result in run_seeds(shorter, [0, 1], resume=True)] == ["finished"] * 2
    assert (first / "config.json").stat().st_mtime_ns == began  # Nothing ran again.


@pytest.mark.full
def test_the_command_line_goes_on_with_a_group_by_its_folder(tmp_path, capsys):
    words = ["--env", "agentkit:catch", "--steps", "40", "--seeds", "3", "--eval-every", "20", "--out", str(tmp_path)]
    assert main(["train", "dqn", *words, "--eval-episodes", "1"]) == 0
    (group,) = tmp_path.iterdir()
    assert f"Group folder: {group}\n" in capsys.readouterr().out
    assert main(["train", "--resume", str(group), "--steps", "60"]) == 0
    assert read_progress(group / "seed3").steps == 60
    assert "KeepBest" in (group / "seed3" / "config.json").read_text() and read_group(group)[0].callbacks
    assert "goes on without it" not in (group / "seed3" / OUTPUT_FILE).read_text()


class InThisProcess:
    """Stands in for `jobs.JobProcesses`: a run has ended as soon as it is started."""

    running = ()

    def __init__(self, threads):
        self._ended = []

    def start(self, job):
        outcome = run_job(job)
        write_outcome(job.directory, outcome)
        self._ended.append((job, outcome))

    def poll(self):
        ended, self._ended = self._ended, []
        return ended

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass


def test_a_run_that_a_callback_has_ended_says_so_and_goes_on_with_another_one(tmp_path, monkeypatch, capsys):
    """In the landing tier, since it alone notices that a group shows as taken the steps that were asked for."""
    monkeypatch.setattr(seeds, "JobProcesses", InThisProcess)
    plan = experiment(tmp_path, num_steps=30, evaluation_period=10, evaluation_episodes=1, progress=True)

    def end_of(callback, num_steps=30, resume=True):
        changed = dataclasses.replace(plan, callbacks=[callback], num_steps=num_steps)
        (result,) = run_seeds(changed, [0], resume=resume)
        return result.state, result.steps, result.stopped_by, capsys.readouterr().err

    state, steps, stopped_by, said = end_of(stop_at(-5), resume=False)
    assert (state, steps) == ("finished", 10) and stopped_by.endswith("reached -5")
    assert f"seed 0 finished at step 10: {stopped_by}\n" in said and "10/30" in said
    assert end_of(stop_at(-5))[1] == 10, "the same callback has ended it"
    assert end_of(stop_at(5))[:3] == ("finished", 30, "")
    assert read_group(tmp_path)[0].callbacks == (stop_at(5),), "what the next resume goes on with"
    assert end_of(stop_at(-5))[1] == 30, "it has taken all its steps"
    with pytest.raises(ConfigError, match=r"has 30 steps already, and num_steps=20 \(--steps\) is the total"):
        end_of(stop_at(5), num_steps=20)


def test_an_outcome_for_which_the_disk_had_no_room_is_reported(tmp_path, monkeypatch):
    failed = Outcome("failed", 50, "No space left on device")
    monkeypatch.setattr(seeds, "JobProcesses", InThisProcess)
    monkeypatch.setattr(InThisProcess, "start", lambda self, job: self._ended.append((job, failed)))
    with pytest.raises(RunsFailedError, match="seed 0: No space left on device"):
        run_seeds(experiment(tmp_path / "group"), [0])


def test_another_choice_of_the_best_policy_restarts_no_run_that_a_callback_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "JobProcesses", InThisProcess)
    monkeypatch.setattr(InThisProcess, "start", lambda _, job: pytest.fail(f"{job.name} runs again"))
    plan, run = experiment(tmp_path, callbacks=[stop_at(-5), keep_best()]), tmp_path / "seed0"
    (tmp_path / "group.json").write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": plan.describe()}))
    write_config(dataclasses.replace(plan, run_directory=run), run)
    write_outcome(run, Outcome("finished", 50, steps=10, stopped_by="it is good enough"))
    (by_length,) = run_seeds(
        dataclasses.replace(plan, callbacks=[stop_at(-5), keep_best("episode_length")]), [0], resume=True
    )
    with pytest.warns(MissingCallbackWarning, match="KeepBest"):
        (none,) = run_seeds(dataclasses.replace(plan, callbacks=[stop_at(-5)]), [0], resume=True)
    assert [(each.steps, each.stopped_by) for each in (by_length, none)] == [(10, "it is good enough")] * 2


@pytest.mark.both_stacks
@pytest.mark.parametrize("chosen", [[], [0, 0], [-1], [2**31], ["0"], 2, None])
def test_impossible_seeds_are_refused_before_there_is_a_folder(tmp_path, chosen):
    with pytest.raises(ConfigError, match="seed"):
        run_seeds(experiment(tmp_path / "group"), chosen)
    assert not (tmp_path / "group").exists()


def test_seeds_may_be_an_array_and_a_count_is_told_its_range():
    assert [(seed, type(seed)) for seed in check_seeds(np.arange(2))] == [(0, int), (1, int)]
    with pytest.raises(ConfigError, match=r"seeds: expected a list of whole numbers, found 3. range\(3\) is 3 of them"):
        check_seeds(3)


@pytest.mark.both_stacks
def test_a_group_is_not_overwritten_and_keeps_its_seeds(tmp_path):
    (tmp_path / "group.json").write_text(json.dumps({"seeds": [0, 1], "jobs": 1, "experiment": {}}))
    with pytest.raises(ConfigError, match="has a group of seeds in it already"):
        run_seeds(experiment(tmp_path), [0, 1])
    with pytest.raises(ConfigError, match=r"has the seeds \[0, 1\]; this experiment has \[0, 2\]"):
        run_seeds(experiment(tmp_path), [0, 2], resume=True)
    with pytest.raises(ConfigError, match="jobs must be a whole number"):
        run_seeds(experiment(tmp_path), [0], jobs=0)
    with pytest.raises(ConfigError, match=r"there is no group\.json"):
        run_seeds(experiment(tmp_path / "other"), [0], resume=True)


def test_a_resume_that_is_refused_leaves_the_groups_record(tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "JobProcesses", InThisProcess)
    described = experiment(None, callbacks=[curriculum(grow)]).describe()
    (tmp_path / "group.json").write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": described}))
    with pytest.raises(CheckpointError, match=r"callbacks that change the training: Curriculum\(.*; this run has none"):
        run_seeds(experiment(tmp_path), [0], resume=True)
    other = dqn.make_agent(dataclasses.replace(AGENT.config, learning_rate=0.5))
    longer = dataclasses.replace(experiment(tmp_path, num_steps=100, callbacks=[curriculum(grow)]), agent=other)
    with pytest.raises(CheckpointError, match=r"The group .* was made with agent_config.learning_rate=.* has 0\.5"):
        run_seeds(longer, [0], resume=True)
    more = experiment(tmp_path, num_steps=100, num_envs=2, callbacks=[curriculum(grow)])
    with pytest.raises(CheckpointError, match=r"The group .* was made with num_envs=None, and this experiment has 2"):
        run_seeds(more, [0], resume=True)
    assert json.loads((tmp_path / "group.json").read_text())["experiment"] == described


def test_the_next_resume_begins_with_all_that_a_resume_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(seeds, "_run_group", lambda *others: [])
    run_seeds(experiment(tmp_path, seed=7), [0, 1])
    changed = experiment(tmp_path, num_steps=200, on_nan="warn", keep_checkpoints=9, step_timeout=7.0)
    assert run_seeds(changed, [0, 1], jobs=2, resume=True) == []
    assert read_group(tmp_path) == (dataclasses.replace(changed, seed=7), [0, 1], 2)


def test_a_lower_total_is_refused_by_the_newest_checkpoint(tmp_path, monkeypatch):
    """What a killed run had logged after its checkpoint it takes again."""
    monkeypatch.setattr(seeds, "_run_group", lambda *others: [])
    described = experiment(None, num_steps=1_000).describe()
    (tmp_path / "group.json").write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": described}))
    (tmp_path / "seed0" / "checkpoints" / "step_000000000500").mkdir(parents=True)
    (tmp_path / "seed0" / "logs").mkdir()
    (tmp_path / "seed0" / "logs" / "train.csv").write_text("steps,episode_return\n900,1\n")
    assert run_seeds(experiment(tmp_path, num_steps=800), [0], resume=True) == []
    with pytest.raises(ConfigError, match=r"has 500 steps already, and num_steps=400"):
        run_seeds(experiment(tmp_path, num_steps=400), [0], resume=True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"seeds": [[0]]}, r"seeds is \[\[0\]\], expected whole numbers"),
        ({"threads": "1 --x"}, "threads is '1 --x', expected int or null"),
        ({"jobs": None}, "jobs is None, expected int"),
        ({"experiment": []}, r"experiment is \[\], expected dict"),
    ],
    ids=str,
)
def test_a_group_that_is_nearly_right_is_refused_in_a_line(entry, said, tmp_path, capsys):
    record = {"seeds": [0], "jobs": 1, "threads": None, "experiment": experiment(None).describe(), **entry}
    (tmp_path / "group.json").write_text(json.dumps(record))
    assert main(["train", "--resume", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"group\.json is damaged: {said}", line)


@pytest.mark.both_stacks
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "5:5"], "expected FIRST:END"),
        (["--seeds", "0,x"], "expected FIRST:END"),
        (["--seeds", "0,0"], "expected FIRST:END"),
        (["--seeds", "0:2", "--seed", "1"], "--seed and --seeds are both given"),
        (["--jobs", "2"], "--jobs is of --seeds"),
        (["--seeds", "0:2", "--profile"], "--profile is of one run"),
        (["--seeds", f"0,{2**31}"], "seed must be"),
    ],
)
def test_bad_words_are_one_line_and_leave_no_folder(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn", "--env", "agentkit:catch", "--steps", "50", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.both_stacks
@pytest.mark.parametrize("num_rows", [1, 12, 2_000])
def test_progress_is_read_from_the_end_of_a_log(tmp_path, num_rows):
    (tmp_path / "logs").mkdir()
    rows = "".join(f"{10 * number},{number}.0\n" for number in range(1, num_rows + 1))
    (tmp_path / "logs" / "train.csv").write_text(f"steps,episode_return\n{rows}99999,1")  # The last one is cut short.
    last = range(max(num_rows - 9, 1), num_rows + 1)
    assert read_progress(tmp_path) == (10 * num_rows, sum(last) / len(last), [])
    assert read_progress(tmp_path / "none") == (0, None, [])


def test_progress_is_of_rows_with_empty_cells_too(tmp_path):
    """Such as those of `info_metrics` whose name is not in each episode's info."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.csv").write_text("steps,episode_return,won\n10,1.0,1\n20,3.0,\n30,,1\n")
    assert read_progress(tmp_path) == (20, 2.0, [])


def test_progress_is_of_the_environments_own_rewards(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.csv").write_text("steps,episode_return,episode_raw_return\n10,1.0,0.0\n20,1.0,100.0\n")
    assert read_progress(tmp_path) == (20, 50.0, [])
