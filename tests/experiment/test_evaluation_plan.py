"""Evaluation in proportion to the run: a tenth of its steps, also across a resume; what is asked for is kept."""

import dataclasses
import json
import os
import signal

import dm_env
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, specs
from agentkit.agents import dqn
from agentkit.experiment.config.evaluation_plan import EvaluationBudget, EvaluationPlan, evaluation_plan
from agentkit.experiment.evaluation.evaluate import summarise
from agentkit.experiment.local import ActAndLearn
from agentkit.experiment.runs.config_json import experiment_from_record
from agentkit.experiment.runs.open_run import open_run
from agentkit.loggers import read_jsonl

AGENT = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=20, batch_size=2, updates_per_step=0.1))


class Episodes(dm_env.Environment):
    """Has episodes of one length."""

    def __init__(self, length):
        self._length = length
        self._step = 0

    def reset(self):
        self._step = 0
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        self._step += 1
        observation = np.full(2, self._step / self._length, np.float32)
        return (dm_env.termination if self._step >= self._length else dm_env.transition)(1.0, observation)

    def observation_spec(self):
        return specs.Array((2,), np.float32, "observation")

    def action_spec(self):
        return specs.DiscreteArray(2, name="action")


def experiment(length=9, **settings):
    usual = {"agent": AGENT, "environment": lambda seed: Episodes(length), "num_steps": 500}
    return agentkit.ExperimentConfig(**{**usual, **settings})


def played(evaluations):
    return [(record["steps"], record["evaluation_episodes"]) for record in evaluations]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        # A tenth is 50 episodes: one, then at most twice as many as before, until the room is used.
        (
            1,
            [(50, 1), (100, 2), (150, 4), (200, 8), (250, 9), *((50 * number, 5) for number in range(6, 10)), (500, 6)],
        ),
        (10, [(50, 1), (150, 1), (250, 1), (350, 1), (450, 1), (500, 1)]),  # Room for the last one is kept.
        (40, [(50, 1), (150, 1), (250, 1), (350, 1), (450, 1), (500, 1)]),  # Fewer would be no curve.
    ],
)
def test_evaluations_take_a_tenth_of_the_steps_and_come_at_the_end(length, expected):
    evaluations = agentkit.run(experiment(length)).evaluations
    assert played(evaluations) == expected
    assert sum(record["evaluation_episodes"] * record["episode_length"] for record in evaluations) <= max(
        60, 6 * length
    )


def test_long_episodes_count_for_no_more_than_short_ones():
    """Each evaluation played until its room was used up: the mean of lengths of 5 and of 50 was 33 and more."""
    rng, means = np.random.default_rng(0), []
    for _ in range(1_000):
        budget = EvaluationBudget()
        for steps in range(100, 1_001, 100):
            if budget.allows(steps, 1_000):
                lengths = rng.choice([5, 50], budget.num_episodes(steps, steps == 1_000, 10))
                means.append(np.mean(lengths))
                budget.add(summarise([{"episode_return": 1.0, "episode_length": length} for length in lengths]))
    assert abs(np.mean(means) - 27.5) < 4 * np.std(means) / np.sqrt(len(means))


def test_evaluations_that_are_left_out_are_said_once_and_counted(capsys):
    agentkit.run(experiment(40, progress=True))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines if "no evaluation" in line] == ["step 100: no evaluation"]
    assert [line for line in lines if "left out" in line] == [
        "4 evaluations were left out, for which there was no room."
    ]


def test_a_resumed_run_evaluates_as_a_whole_one(tmp_path):
    whole = agentkit.run(experiment(8, run_directory=tmp_path / "whole", checkpoint_period=120))
    stopped = experiment(8, run_directory=tmp_path / "run", checkpoint_period=120)

    step = ActAndLearn.step

    def dying(self):
        if self.num_steps == 320:
            raise KeyboardInterrupt
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActAndLearn, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            agentkit.run(stopped)
    resumed = agentkit.run(stopped, resume=True)
    assert played(resumed.evaluations) == [pair for pair in played(whole.evaluations) if pair[0] > 240]
    assert len(whole.evaluations) > len(resumed.evaluations) > 1


@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ({}, EvaluationPlan(50, 10, True, 1_000)),
        ({"evaluation_period": 400}, EvaluationPlan(400, 10, False, 1_000)),
        ({"evaluation_episodes": 3}, EvaluationPlan(50, 3, False, 1_000)),
        ({"evaluation_period": 400, "evaluation_episodes": 3}, EvaluationPlan(400, 3, False, 1_000)),
        ({"evaluation_period": 0}, EvaluationPlan(0, 10, False, 1_000)),
        ({"num_steps": 3_000}, EvaluationPlan(300, 10, True, 3_000)),
        ({"num_steps": 10**8, "evaluation_period": 0}, EvaluationPlan(0, 10, False, 100_000)),
        ({"evaluation_max_steps": 7}, EvaluationPlan(50, 10, True, 7)),
        ({"num_steps": 7}, EvaluationPlan(1, 10, True, 1_000)),
    ],
)
def test_what_is_asked_for_is_kept_also_by_the_run_folder(tmp_path, settings, plan):
    config = experiment(environment="agentkit:catch", **settings)
    assert evaluation_plan(config) == plan
    assert evaluation_plan(dataclasses.replace(config, seed=1)) == plan
    record = json.loads(json.dumps(config.describe()))
    assert evaluation_plan(experiment_from_record(record, tmp_path)) == plan


def test_explicit_numbers_are_played_whatever_they_cost():
    asked = experiment(60, num_steps=240, evaluation_period=120, evaluation_episodes=4)
    assert played(agentkit.run(asked).evaluations) == [(120, 4), (240, 4)]


def test_a_run_of_before_keeps_its_numbers(tmp_path):
    record = experiment(environment="agentkit:catch").describe()
    record |= {"evaluation_period": 10_000, "evaluation_episodes": 10}
    del record["evaluation_max_steps"]
    assert evaluation_plan(experiment_from_record(record, tmp_path)) == EvaluationPlan(10_000, 10, False, 1_000)
    budget = EvaluationBudget()
    budget.restore(None)  # Nor has its checkpoint a budget.
    assert budget == EvaluationBudget()


def test_the_plan_is_said():
    cut = "An episode is cut off after 500 steps (--eval-max-steps)."
    text = EvaluationPlan(2_000, 1, False, 500).describe(20_000)
    assert text == f"Evaluation: 1 episode every 2,000 steps. {cut}"
    assert EvaluationPlan(0, 10, False).describe(20_000) == "Evaluation: none"
    assert EvaluationPlan(60, 10, False).describe(60).startswith("Evaluation: 10 episodes every 60 steps")
    assert EvaluationPlan(61, 10, False).describe(60, "update") == (
        "Evaluation: none, since the first one would come at update 61 (--eval-every), after the run's end at 60"
    )
    text = EvaluationPlan(2_000, 10, True, 500).describe(20_000)
    assert text == (
        "Evaluation: up to 10 episodes every 2,000 steps, about 2,000 environment steps in all, but 5 evaluations at "
        f"least. {cut}"
    )


ENDLESS = 10**9


@pytest.mark.parametrize("num_envs", [None, 2])
def test_episodes_that_never_end_are_cut_off_and_that_is_said(capsys, num_envs):
    asked = {"evaluation_period": 30, "evaluation_episodes": 2, "evaluation_max_steps": 12, "num_envs": num_envs}
    (record,) = agentkit.run(experiment(ENDLESS, num_steps=30, progress=True, **asked)).evaluations
    assert (record["episode_length"], record["episode_return"], record["evaluation_episodes"]) == (12, 12, 2)
    assert "12.0 (12.0 to 12.0, 2 episodes, 2 of them cut off after 12 steps)" in capsys.readouterr().err


def test_an_evaluation_that_goes_on_for_long_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr("agentkit.experiment.training.training_loop.LONG_SECONDS", 0.0)
    agentkit.run(experiment(9, num_steps=30, progress=True, evaluation_period=15, evaluation_max_steps=7))
    assert capsys.readouterr().err.count("step 15: evaluating for over 0 s; an episode is cut off after 7 steps") == 1


def test_an_episode_that_ends_by_itself_is_not_cut_off(capsys):
    agentkit.run(experiment(12, num_steps=30, progress=True, evaluation_episodes=1, evaluation_max_steps=12))
    said = capsys.readouterr().err
    assert "evaluation return 12.0 (1 episode)" in said
    assert "cut off after 12" not in said


class Interrupting(Episodes):
    """Sends this process a signal in the middle of an evaluation."""

    signal = None

    def step(self, action):
        if self._step == 5 and self.signal is not None and self.evaluation:
            os.kill(os.getpid(), self.signal)
            type(self).signal = None
        return super().step(action)


def interrupting(seed):
    environment = Interrupting(9)
    environment.evaluation = seed != 0  # Training's is the run's own.
    return environment


@pytest.mark.parametrize("period", [40, 60])
def test_a_signal_ends_an_evaluation_which_a_resumed_run_plays_again(tmp_path, period):
    def run(name, resume=False, **settings):
        asked = {"num_steps": 60, "evaluation_period": period, "run_directory": tmp_path / name} | settings
        return agentkit.run(experiment(environment=interrupting, **asked), resume=resume)

    whole = run("whole")
    Interrupting.signal = signal.SIGTERM
    stopped = run("run")
    assert (stopped.interrupted, stopped.steps, stopped.evaluations) == (True, period, [])
    resumed = run("run", resume=True)
    assert not resumed.interrupted
    assert resumed.evaluations == whole.evaluations
    assert run("run", resume=True).evaluations == []
    assert [row["steps"] for row in open_run(tmp_path / "run").rows("evaluation")] == [period]


def test_a_last_evaluation_that_a_longer_total_has_no_room_for_is_not_due_for_ever(tmp_path, monkeypatch):
    def make(seed):
        environment = Interrupting(40)
        environment.evaluation = seed != 0
        return environment

    def interrupting_at(number):
        def step(self):
            one_step(self)
            if self.num_steps == number:
                Interrupting.signal = signal.SIGTERM
            if self.num_steps == 100:
                raise KeyboardInterrupt

        monkeypatch.setattr(ActAndLearn, "step", step)

    one_step = ActAndLearn.step
    config = experiment(environment=make, num_steps=60, run_directory=tmp_path, checkpoint_period=30)
    interrupting_at(60)
    assert agentkit.run(config).interrupted
    interrupting_at(None)
    with pytest.raises(KeyboardInterrupt):
        agentkit.run(dataclasses.replace(config, num_steps=120), resume=True)
    found = checkpoint.read_latest(tmp_path / "checkpoints")
    assert (found.step, bool(found.state["evaluation_due"])) == (90, False)
    assert [row["steps"] for row in open_run(tmp_path).rows("evaluation")][-1] < 60, "the broken one is left out"


def test_an_evaluation_that_was_due_is_logged_once_though_a_kill_comes_before_its_checkpoint(tmp_path, monkeypatch):
    asked = {"num_steps": 60, "evaluation_period": 20, "run_directory": tmp_path / "run", "loggers": ["jsonl"]}

    class KilledError(BaseException):
        pass

    def kill(*rest, **settings):
        raise KilledError

    agentkit.run(experiment(environment=interrupting, **asked | {"num_steps": 20}))
    Interrupting.signal = signal.SIGTERM
    assert agentkit.run(experiment(environment=interrupting, **asked), resume=True).steps == 40
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", kill)
        with pytest.raises(KilledError):
            agentkit.run(experiment(environment=interrupting, **asked), resume=True)
    steps = [row["steps"] for row in open_run(tmp_path / "run").rows("evaluation")]
    assert steps == [20, 40]
    agentkit.run(experiment(environment=interrupting, **asked), resume=True)
    assert [row["steps"] for row in open_run(tmp_path / "run").rows("evaluation")] == [20, 40, 60]
    assert [row["steps"] for row in read_jsonl(tmp_path / "run/logs/evaluation.jsonl")] == [20, 40, 60]


@pytest.mark.full
def test_the_command_evaluate_has_the_runs_limit_or_its_own(tmp_path, capsys):
    from agentkit.cli import main

    run = str(tmp_path / "run")  # Episodes have 9 steps.
    agentkit.run(experiment(environment="agentkit:catch", num_steps=30, run_directory=run, evaluation_max_steps=5))
    for words, said in (
        ((), "Cut off after 5 steps (--max-steps): 2 episodes.\n"),
        (("--max-steps", "9"), ""),
    ):
        assert main(["evaluate", run, "--episodes", "2", *words]) == 0
        assert capsys.readouterr().out.partition("(2 episodes)\n")[2] == said
    found = agentkit.evaluate(run, 3, evaluation_max_steps=4)
    assert (found["episode_length"], found["episodes_cut"]) == ([4, 4, 4], 3)
