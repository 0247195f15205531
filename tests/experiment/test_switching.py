"""A run in one process goes on launched, and a launched one in one process: with all that it has, and with no other."""

import json

import pytest

import agentkit
from agentkit import checkpoint
from agentkit.agents import dqn
from agentkit.callbacks import stop_when_flat
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.launching import run as launching
from agentkit.experiment.launching.program import LaunchConfig
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.learner_folders import handover_folder
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.resume_checks import begin
from agentkit.experiment.training import training_loop
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.switched_state import as_launched, as_of_one_process
from agentkit.experiment.training.switching import switched
from agentkit.learning.schedules import Linear
from agentkit.loggers import CsvLogger, JsonLinesLogger, read_csv, read_jsonl

AGENT = dqn.make_agent(
    dqn.Config(
        hidden_sizes=(8,), min_replay_size=100, batch_size=16, updates_per_step=0.1,
        epsilon=Linear(1.0, 0.1, 10_000),
    )
)  # fmt: skip


def plan(folder, **settings):
    settings = {"num_envs": 2, "evaluation_period": 400, "evaluation_episodes": 2, "progress": False} | settings
    return agentkit.ExperimentConfig(AGENT, "agentkit:catch", 400, run_directory=folder, **settings)


def replay_of(found):
    """Returns what the tables have counted."""
    return json.loads((found.path / "replay" / "replay.json").read_text())["tables"][0]


def test_a_run_goes_on_launched_and_then_in_one_process_again(tmp_path, monkeypatch, capsys):
    agentkit.run(plan(tmp_path, callbacks=[stop_when_flat(1_000)]))
    before, inserted = checkpoint.read_latest(tmp_path / "checkpoints"), []
    inserted.append(replay_of(before)["num_inserted"])
    best = before.state["callbacks"]["StopWhenFlat"]["best"]

    agentkit.resume_launch(tmp_path, replay="served", engine="threads", num_actors=1, num_steps=800)
    launched = checkpoint.read_latest(tmp_path / "checkpoints")
    inserted.append(replay_of(launched)["num_inserted"])
    assert launched.state["launched"] and 800 <= launched.step < 850
    assert launched.state["explored"] == {"actor-0": launched.step}  # From 400 on.
    assert launched.state["callbacks"]["evaluator-0"]["StopWhenFlat"]["best"] >= best

    for name, rows in (("train-1", (790, 810, 10**6)), ("program", (800, 10**6)), ("learner-other", (10**6,))):
        with CsvLogger(tmp_path / "logs" / f"{name}.csv", 10**9) as logger:
            for steps in rows:
                logger.write({"steps": steps})
    with JsonLinesLogger(tmp_path / "logs" / "train-1.jsonl") as lines:
        for steps in (790, 10**6):
            lines.write({"steps": steps})
    monkeypatch.setattr(training_loop, "LONG_EPISODE", 20)  # Of each environment; those of catch have 9 steps.
    agentkit.resume(tmp_path, replay="in_process", num_steps=1_200, progress=True)
    assert "no episode has ended" not in capsys.readouterr().err  # Nobody counted those of the launched run.
    after = checkpoint.read_latest(tmp_path / "checkpoints")
    inserted.append(replay_of(after)["num_inserted"])
    assert "launched" not in after.state and after.step == 1_200
    # 0.1 updates an item after the first 100: those of all three parts, from one replay.
    updates = [found.state["learner"]["num_updates"] for found in (before, launched, after)]
    for count, rows in zip(updates, inserted, strict=True):
        assert count == pytest.approx(0.1 * (rows - 100), abs=4)
    assert inserted[1] - inserted[0] > 300 < inserted[2] - inserted[1]
    # The exploration's schedule has gone on: an actor in one process keeps its count of steps.
    (counted,) = after.state["actor"]["policy_state"].values()
    assert counted.tolist() == [[1_200, 2]] * 2
    assert after.state["explored"] == launched.state["explored"] and after.state["steps_of_others"] == 0
    assert after.state["callbacks"]["StopWhenFlat"]["best"] >= best
    later = {path.stem: int(read_csv(path)[1][-1]["steps"]) > 10**5 for path in (tmp_path / "logs").glob("*.csv")}
    assert [name for name in later if later[name]] == ["learner-other"]  # A killed program's rows are not this run's.
    assert [row["steps"] for row in read_jsonl(tmp_path / "logs" / "train-1.jsonl")] == [790]
    steps = [float(row["steps"]) for row in read_csv(tmp_path / "logs" / "train.csv")[1]]
    assert steps == sorted(steps) and steps[0] < 400 < 800 < steps[-1]
    agentkit.resume(tmp_path, num_steps=1_220)  # It is an ordinary run again.
    assert checkpoint.read_latest(tmp_path / "checkpoints").state["explored"] == launched.state["explored"]


def test_a_program_of_fewer_nodes_drops_the_lost_rows_of_those_that_it_has_no_more(tmp_path, monkeypatch):
    """Killed at 1,000 steps with two actors and an evaluator, it goes on from 800 with one actor."""
    for name in ("train-1", "evaluation"):
        with CsvLogger(tmp_path / "logs" / f"{name}.csv") as logger:
            for steps in (790, 900, 1_000):
                logger.write({"steps": steps})
    found = checkpoint.Checkpoint(800, tmp_path / "checkpoints" / "step_000000000800", {"launched": True})

    def steps(*args):
        logs = (read_csv(tmp_path / "logs" / f"{name}.csv")[1] for name in ("train-1", "evaluation"))
        return [[row["steps"] for row in rows] for rows in logs]

    for name, known in (("find_spec", None), ("check_fit", None), ("prepare_launch", found), ("make_program", None)):
        monkeypatch.setattr(launching, name, lambda *args, known=known, **kwargs: known)
    monkeypatch.setattr(launching, "Policies", lambda *args: None)
    monkeypatch.setattr(launching, "_supervise", steps)
    assert launching._launch(plan(tmp_path), LaunchConfig(num_actors=1), True, None) == [["790"], ["790"]]


def test_an_actor_after_a_switch_plays_other_episodes(tmp_path):
    found = checkpoint.Checkpoint(700, tmp_path, {"launched": True, "num_steps": 700, "explored": {"actor-1": 450}})
    checkpoint.write(tmp_path / "checkpoints", 700, {}, {"replay": lambda folder: None})
    hooks = Hooks(plan(tmp_path))
    starts = [as_of_one_process(found._replace(step=step), 0, hooks)[1] for step in (700, 700, 701)]
    assert starts[0] == starts[1] and starts[0].num_steps == 450
    assert len({starts[0].seed, starts[2].seed, 0}) == 3


class Rows(agentkit.callbacks.Callback):
    """Sees rows of the learner's log."""

    def on_learner_log(self, run, record):
        return None


class Judged(agentkit.callbacks.Callback):
    """Sees the episodes of evaluations."""

    def on_evaluation_episode(self, run, episode):
        return None


class Both(Rows):
    """Sees evaluations, too, of which a program without evaluators has none."""

    def on_evaluation(self, run, record):
        return None


def test_callbacks_have_the_state_of_the_node_that_they_are_called_on(tmp_path):
    callbacks = [stop_when_flat(10), Rows(), Judged(), Both()]
    checkpoint.write(tmp_path / "checkpoints", 700, {}, {"replay": lambda folder: None})
    states = {
        "learner-0": {"StopWhenFlat": {"best": None}, "Rows": {"n": 7}, "Judged": {"n": 0}, "Both": {"n": 3}},
        "evaluator-0": {"StopWhenFlat": {"best": 0.5}, "Rows": {"n": 0}, "Judged": {"n": 5}},
    }
    found = checkpoint.Checkpoint(700, tmp_path, {"launched": True, "callbacks": states})
    one, _ = as_of_one_process(found, 0, Hooks(plan(tmp_path, callbacks=callbacks)))
    states = {"StopWhenFlat": {"best": 0.5}, "Rows": {"n": 7}, "Judged": {"n": 5}, "Both": {"n": 3}}
    assert one.state["callbacks"] == states
    assert one.path.name == "step_000000000700"
    counter = {"counts": {"steps": 700, "episodes": 35}}
    state = {"num_steps": 700, "learner": {"num_updates": 70}, "callbacks": one.state["callbacks"], "counter": counter}
    back = as_launched(state)
    assert back["totals"] == {"steps": 700, "episodes": 35, "updates": 70} and back["explored"] == {"actor-0": 700}
    assert back["callbacks"] == dict.fromkeys(("learner-0", "evaluator-0"), one.state["callbacks"])


def test_a_launched_run_whose_replay_nobody_saved_does_not_go_on_with_an_empty_one(tmp_path):
    checkpoint.write(tmp_path / "checkpoints", 700, {})
    found = checkpoint.Checkpoint(700, tmp_path, {"launched": True})
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* has the contents of replay"):
        as_of_one_process(found, 0, Hooks(plan(tmp_path)))


def test_a_launched_run_whose_replay_was_handed_over_goes_on_with_that(tmp_path):
    checkpoint.write(tmp_path / "checkpoints", 700, {})
    handed = checkpoint.write(handover_folder(tmp_path, "replay"), 700, {}, {"replay": lambda folder: None})
    found = checkpoint.Checkpoint(700, tmp_path, {"launched": True})
    one, _ = as_of_one_process(found, 0, Hooks(plan(tmp_path)))
    assert one.path == handed


def test_schedules_and_seeds_go_on_over_both_changes(tmp_path):
    """Of 1,000 steps of four actors each one's schedule is at 250, and no actor's first seeds come again."""
    checkpoint.write(tmp_path / "checkpoints", 1_000, {}, {"replay": lambda folder: None})
    explored = {f"actor-{i}": 250 for i in range(4)}
    found = checkpoint.Checkpoint(1_000, tmp_path, {"launched": True, "explored": explored})
    one, start = as_of_one_process(found, 0, Hooks(plan(tmp_path)))
    assert start.num_steps == 250
    kept = {name: one.state[name] for name in ("explored", "steps_of_others")}  # As `ActAndLearn.save` keeps them.
    back = as_launched({"num_steps": 1_100, "learner": {"num_updates": 70}, **kept})
    assert back["explored"] == {**explored, "actor-0": 350}


TRAINED, LAUNCHED = {}, {"launch": {}}
REFUSED = {
    "reverb-to-one": (LAUNCHED, {"replay": "reverb"}, "its replay is 'reverb'"),
    "reverb-to-many": (TRAINED, {"replay": "reverb"}, "its replay is 'reverb'"),
    "own-replay": (TRAINED, {"replay": {"name": "mine:make"}}, "its replay is {'name'"),
    "on-device": (TRAINED, {"on_device": True}, "on the device"),
    "data": (TRAINED, {"data": "episodes.h5"}, "began with data"),
    "ready": (TRAINED, {"ready": 1}, "acted for as they are ready"),
    "other-replay": (TRAINED, {"replay": "reverb"}, "was begun with replay='reverb'"),
    "offline": ({"offline": {"dataset": None, "evaluates": True}}, {}, "from data alone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_switch_says_why_and_stays_as_it_is(name, tmp_path):
    how, changes, why = REFUSED[name]
    write_config(plan(tmp_path), tmp_path, **how)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=why):
        if how is LAUNCHED or name == "other-replay":
            agentkit.resume(tmp_path, replay="in_process")
        else:
            agentkit.resume_launch(tmp_path, replay="served")
    assert path.read_bytes() == before


def test_a_run_that_cannot_be_launched_for_another_reason_stays_as_it_was(tmp_path):
    write_config(plan(tmp_path, video_period=100), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="video_period: only a run in one process films itself"):
        agentkit.resume_launch(tmp_path, replay="served", num_steps=800)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_run_that_fails_after_it_has_begun_is_of_the_new_kind(tmp_path):
    write_config(plan(tmp_path, replay="served"), tmp_path, launch={})
    with pytest.raises(RuntimeError), switched(tmp_path, "train", "in_process"):
        begin(plan(tmp_path))  # With the same words as before, of one command line.
        raise RuntimeError
    assert "launch" not in json.loads((tmp_path / "config.json").read_text())


def test_a_run_that_goes_on_now_is_not_switched(tmp_path):
    write_config(plan(tmp_path, replay="served"), tmp_path, launch={})
    before = (tmp_path / "config.json").read_bytes()
    with run_lock(tmp_path), pytest.raises(ConfigError, match="runs in"):
        agentkit.resume(tmp_path, replay="in_process")
    assert (tmp_path / "config.json").read_bytes() == before
