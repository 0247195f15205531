"""Several agents in one run: who plays whom, each with a learner of its own, saved, resumed, frozen and evaluated."""

import dataclasses
import importlib.util
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit import checkpoint
from agentkit.agents import a2c, dqn, ppo
from agentkit.cli import main
from agentkit.envs.catch import Catch
from agentkit.envs.multi_agent.matrix_game import MatrixGame
from agentkit.envs.multi_agent.tic_tac_toe import TicTacToe
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.errors import AgentkitError, CheckpointError, ConfigError, MissingExtraError, SpecError, UnknownNameError
from agentkit.experiment import read_multi_agent_config
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy, who_plays

DQN = dqn.make_agent(dqn.Config(batch_size=8, min_replay_size=16, hidden_sizes=(8,), n_step=2))
PPO = ppo.make_agent(ppo.Config(segment_length=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,)))
QUIET = {"evaluation_period": 0, "progress": False}


def config(
    folder=None, policies=DQN, policy_of="shared", environment="agentkit:tic_tac_toe", num_steps=120, **settings
):
    settings = {**QUIET, **settings}
    return agentkit.MultiAgentConfig(policies, environment, num_steps, policy_of, run_directory=folder, **settings)


def saved(folder):
    return checkpoint.read_latest(folder / "checkpoints").state


def assert_equal(one, other):
    tree.assert_same_structure(one, other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_run_of_one_agent_as_one_of_several_is_the_same_to_the_bit(tmp_path):
    """Nothing of the loop, the replay's room, the keys or the seeds differs where there is one agent."""
    single = agentkit.ExperimentConfig(DQN, Catch, 200, run_directory=tmp_path / "one", seed=5, **QUIET)
    agentkit.run(single)
    agentkit.run(config(tmp_path / "several", environment=Catch, num_steps=200, seed=5))
    one, several = saved(tmp_path / "one"), saved(tmp_path / "several")
    assert several["learner"].keys() == {"shared"}
    assert_equal(one["learner"], several["learner"]["shared"])
    assert_equal(one["actor"], several["actors"]["agent"])


@pytest.mark.full
def test_one_agent_has_room_for_the_two_segments_that_the_end_of_an_episode_fills():
    agent = a2c.make_agent(a2c.Config(segment_length=1, batch_size=1, hidden_sizes=(8,)))
    assert agentkit.run(config(None, agent, environment=Catch, num_steps=20)).updates >= 20


MIXED = {"a": DQN, "b": PPO, "c": dataclasses.replace(DQN)}
WHO = {"agent_0": "a", "agent_1": "b", "agent_2": "c", "agent_3": "a"}


def test_three_policies_of_two_kinds_are_resumed_to_the_bit(tmp_path):
    """Agents come and go, so that some wait in mid-episode when it is saved."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    given = {"policies": MIXED, "policy_of": WHO, "environment": "agentkit:come_and_go"}
    agentkit.run(config(whole, **given, num_steps=250))
    agentkit.run(config(parts, **given, num_steps=117))
    assert saved(parts)["loop"]["turns"], "nobody waits: choose another step"
    result = agentkit.resume(parts, num_steps=250)
    one, other = saved(whole), saved(parts)
    assert result.steps == 250
    for name in ("learner", "actors", "loop", "counter"):
        assert_equal(one[name], other[name])
    updates = {policy_id: int(learner["num_updates"]) for policy_id, learner in other["learner"].items()}
    assert updates.keys() == {"a", "b", "c"} and min(updates.values()) > 0
    train = agentkit.open_run(str(parts)).rows("train")
    assert [row["episode_return/agent_3"] for row in train] == [
        row["episode_return/agent_3"] for row in agentkit.open_run(str(whole)).rows("train")
    ]
    assert {"learner-a", "learner-b", "learner-c"} <= {path.stem for path in (parts / "logs").iterdir()}


@pytest.mark.full
@pytest.mark.reverb
def test_policies_of_two_kinds_learn_from_reverb_and_are_resumed(tmp_path, capsys):
    """Each has a server of its own; what Reverb holds is not had back to the bit, so that new episodes begin."""
    policies, who = {"a": DQN, "b": PPO}, WHO | {"agent_2": "b"}
    given = {"policies": policies, "policy_of": who, "environment": "agentkit:come_and_go", "replay": "reverb"}
    agentkit.run(config(tmp_path, **given, num_steps=117))
    before = saved(tmp_path)
    assert before["loop"]["turns"], "nobody waits: choose another step"
    result = agentkit.resume(tmp_path, num_steps=250, progress=True)
    after = saved(tmp_path)
    ended, under_way = int(after["counter"]["counts"]["steps"]), int(after["loop"]["length"])
    assert result.steps == ended + under_way == 250
    for policy_id, learner in after["learner"].items():
        assert int(learner["num_updates"]) > int(before["learner"][policy_id]["num_updates"]) > 0
    assert "What Reverb holds is not had back to the bit: a new episode begins" in capsys.readouterr().err
    rows = agentkit.open_run(str(tmp_path)).rows("learner-a")
    assert rows[-1]["replay_size"] > 117, "its items of before the resume are there"


def test_in_turns_an_action_under_way_is_resumed_with_its_extras(tmp_path):
    """PPO stores log-probabilities and values beside an action, which is recorded at its agent's next turn only."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    agentkit.run(config(whole, PPO, "each", num_steps=80))
    agentkit.run(config(parts, PPO, "each", num_steps=42))
    waiting = [turn["action"] is not None for turn in saved(parts)["loop"]["turns"].values()]
    assert any(waiting), "nobody's action waits: choose another step"
    agentkit.resume(parts, num_steps=80)
    one, other = saved(whole), saved(parts)
    for name in ("learner", "actors", "loop", "counter"):
        assert_equal(one[name], other[name])


def test_several_environments_are_played_in_a_batch_and_resumed_to_the_bit(tmp_path):
    """In turns, so that actions wait with their extras in some environments and not in others."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    given = {"policies": {"first": PPO, "second": "random"}, "policy_of": None, "num_envs": 3}
    agentkit.run(config(whole, **given, num_steps=180))
    agentkit.run(config(parts, **given, num_steps=99))
    result = agentkit.resume(parts, num_steps=180)
    one, other = saved(whole), saved(parts)
    assert result.steps == 180 and other["loop"]["environments"].keys() == {"0", "1", "2"}
    for name in ("learner", "actors", "loop", "counter"):
        assert_equal(one[name], other[name])
    assert int(other["learner"]["first"]["num_updates"]) == 2
    rows = agentkit.open_run(str(parts)).rows("train")
    assert all(row["agent_steps"] == row["steps"] for row in rows) and rows[-1]["episodes"] > 15
    starts = [environment["environment"]["seed"] for environment in other["loop"]["environments"].values()]
    assert len(set(starts)) == 3, "each environment has a seed of its own"
    with pytest.raises(CheckpointError, match="was made with num_envs=3, and this experiment has 4"):
        agentkit.resume(parts, num_envs=4, num_steps=300)


class Unrepeatable(MultiAgentWrapper):
    """Cannot be saved in mid-episode."""

    def __getattr__(self, name):
        if name in ("reseed", "save", "restore"):
            raise AttributeError(name)
        return super().__getattr__(name)


def test_steps_of_an_episode_that_is_dropped_are_counted_in_all_logs(tmp_path):
    """Episodes of the matrix game have 4 steps."""
    given = {"folder": tmp_path / "run", "environment": lambda seed: Unrepeatable(MatrixGame(seed=seed))}
    agentkit.run(config(**given, num_steps=42))
    agentkit.run(config(**given, num_steps=60), resume=True)
    steps = [row["steps"] for row in agentkit.open_run(str(tmp_path / "run")).rows("train")]
    assert steps == [*range(4, 42, 4), *range(46, 60, 4)]


def test_agents_that_share_a_policy_share_learner_and_replay(tmp_path):
    agentkit.run(config(tmp_path / "shared", num_steps=60))
    agentkit.run(config(tmp_path / "each", policy_of="each", num_steps=60))
    shared, each = saved(tmp_path / "shared"), saved(tmp_path / "each")
    assert each["learner"].keys() == {"first", "second"} and shared["actors"].keys() == {"first", "second"}
    # Each has half of the items: with 16 to begin at and an update for two, these are the counts.
    assert int(shared["learner"]["shared"]["num_updates"]) > sum(
        int(x["num_updates"]) for x in each["learner"].values()
    )
    rows = agentkit.open_run(str(tmp_path / "shared")).rows("train")
    assert all(row["agent_steps"] == row["steps"] for row in rows), "in turns, one acts at a step"


@pytest.mark.parametrize(
    ("policy_of", "names"), [("shared", ["learner"]), ("each", ["learner-first", "learner-second"])]
)
def test_the_learners_rows_are_iterated_over(policy_of, names, tmp_path):
    rows = list(agentkit.iterate(config(tmp_path / "run", policy_of=policy_of, num_steps=60, log_seconds=0.0)))
    assert sorted({row.log for row in rows} - {"train"}) == names
    for name in names:
        written = (tmp_path / "run" / "logs" / f"{name}.csv").read_text().splitlines()[1:]
        assert len(written) == sum(row.log == name for row in rows) > 1


def test_steps_are_the_environments_and_those_of_agents_are_shown(tmp_path):
    result = agentkit.run(config(tmp_path / "run", environment="agentkit:matrix_game", num_steps=40))
    assert result.steps == 40
    assert [row["agent_steps"] for row in agentkit.open_run(str(tmp_path / "run")).rows("train")][-1] == 80


@pytest.mark.parametrize("num_envs", [None, 2])
def test_steps_counted_by_agents_are_the_length_and_the_periods_of_a_run(num_envs, tmp_path):
    """Two act at each step of the matrix game, whose episodes have 4."""
    plan = config(
        tmp_path, environment="agentkit:matrix_game", num_steps=80, num_envs=num_envs, count_steps_by="agents",
        evaluation_period=40, evaluation_episodes=1,
    )  # fmt: skip
    result = agentkit.run(plan)
    found = agentkit.open_run(str(tmp_path))
    assert result.steps == 80 and [row["steps"] for row in result.evaluations] == [40, 80]
    rows = found.rows("train")
    assert rows[-1]["steps"] == rows[-1]["agent_steps"] == 80 and rows[-1]["episodes"] == 10
    agentkit.resume(tmp_path, num_steps=96)
    assert found.rows("train")[-1]["steps"] == 96
    with pytest.raises(CheckpointError, match="count_steps_by: saved agents, found environment"):
        agentkit.resume(tmp_path, num_steps=120, count_steps_by="environment")
    with pytest.raises(UnknownNameError, match="count_steps_by"):
        config(count_steps_by="agent")
    with pytest.raises(ConfigError, match="environment_settings: expected a mapping of arguments by name, found None"):
        config(environment_settings=None)


def test_a_game_may_have_arguments_that_are_agentkits_own_of_one_agent():
    """A game is made with a seed, and with nothing else of agentkit's."""
    names = ("workers", "ready", "wrappers", "num_envs", "evaluation")
    assert config(environment_settings=dict.fromkeys(names, 1)).environment_settings.keys() == set(names)
    with pytest.raises(ConfigError, match="environment_settings: \\['raw', 'seed'\\] are agentkit's own"):
        config(environment_settings={"seed": 1, "raw": True, "workers": 2})


def test_a_frozen_policy_plays_as_it_was_and_learns_nothing(tmp_path):
    agentkit.run(config(tmp_path / "old", policy_of="each"))
    frozen = agentkit.Frozen(tmp_path / "old", policy="second")
    new = config(tmp_path / "new", {"learner": DQN, "old": frozen}, {"first": "learner", "second": "old"})
    agentkit.run(new)
    assert saved(tmp_path / "new")["learner"].keys() == {"learner"}
    agentkit.resume(tmp_path / "new", num_steps=150)
    alike = [
        agentkit.evaluate_multi_agent(tmp_path / "new", 5, seed=3, opponents=opponents)
        for opponents in ({}, {"second": frozen}, {"second": "random"})
    ]
    assert alike[0] == alike[1] != alike[2]


def test_the_policy_of_a_run_of_one_agent_plays_too(tmp_path):
    agentkit.run(agentkit.ExperimentConfig(DQN, Catch, 60, run_directory=tmp_path / "one", **QUIET))
    mixed = {"learner": DQN, "one": agentkit.Frozen(tmp_path / "one")}
    with pytest.raises(SpecError, match="The policy was trained with observations"):
        agentkit.run(config(None, mixed, {"first": "learner", "second": "one"}))
    with pytest.raises(ConfigError, match="is a run of one agent; leave out policy='x'"):
        frozen = agentkit.Frozen(tmp_path / "one", policy="x")
        agentkit.run(config(None, {"learner": DQN, "one": frozen}, {"first": "learner", "second": "one"}))
    with pytest.raises(UnknownNameError, match=r"policy of .* 'third'"):
        agentkit.run(config(tmp_path / "two"))
        frozen = agentkit.Frozen(tmp_path / "two", policy="third")
        agentkit.run(config(None, {"learner": DQN, "one": frozen}, {"first": "learner", "second": "one"}))
    with pytest.raises(ConfigError, match=r"/one cannot play as 'second'\. The policy was trained with observations"):
        agentkit.evaluate_multi_agent(tmp_path / "two", 1, opponents={"second": agentkit.Frozen(tmp_path / "one")})


def test_evaluations_tell_returns_and_wins_by_agent(tmp_path):
    result = agentkit.run(config(tmp_path / "run", evaluation_period=60, evaluation_episodes=4))
    first, last = result.evaluations
    assert (first["steps"], last["steps"]) == (60, 120)
    assert last["episode_return"] == 0 == last["episode_return/first"] + last["episode_return/second"]
    assert last["wins/first"] - last["wins/second"] == last["episode_return/first"]
    found = agentkit.evaluate_multi_agent(tmp_path / "run", 4, evaluation_max_steps=2)
    assert (found["episodes_cut"], found["episode_length"], found["wins/first"]) == (4, 2, 0)
    with pytest.raises(ConfigError, match="evaluate_multi_agent calls it 'num_episodes'"):
        agentkit.evaluate_multi_agent(tmp_path / "run", evaluation_episodes=2)
    with pytest.raises(ConfigError, match="num_steps: no evaluation depends on it"):
        agentkit.evaluate_multi_agent(tmp_path / "run", num_steps=2)
    with pytest.raises(UnknownNameError, match="argument of play_tournament 'sed'"):
        agentkit.play_tournament(tmp_path / "run", sed=2)
    with pytest.raises(ConfigError, match="calls them 'others'"):
        agentkit.play_tournament(tmp_path / "run", opponents={"x": "random"})
    with pytest.raises(ConfigError, match="no single policy"):
        _ = result.policy


SPECS = TicTacToe().agent_specs()


@pytest.mark.parametrize(
    "policies, policy_of, expected",
    [
        (DQN, "shared", {"first": "shared", "second": "shared"}),
        (DQN, "each", {"first": "first", "second": "second"}),
        ({"only": DQN}, None, {"first": "only", "second": "only"}),
        ({"first": DQN, "second": "random"}, None, {"first": "first", "second": "second"}),
        ({"x": DQN, "y": PPO}, {"second": "x", "first": "y"}, {"first": "y", "second": "x"}),
        ({"f": DQN, "s": PPO}, lambda agent_id: agent_id[0], {"first": "f", "second": "s"}),
        ({"x": DQN, "y": PPO}, {"first": "y", "second": "x"}.get, {"first": "y", "second": "x"}),
    ],
)
def test_who_plays_by_which_policy(policies, policy_of, expected):
    assert who_plays(config(policies=policies, policy_of=policy_of), SPECS) == expected


@pytest.mark.parametrize(
    "policies, policy_of, message",
    [
        (DQN, None, "policy_of: with one agent as policies, expected 'shared' or 'each'"),
        (DQN, "some", "expected 'shared' or 'each', found 'some'"),
        ({"a": DQN, "b": DQN}, None, "there are the policies a, b and the agents first, second"),
        ({"a": DQN, "b": DQN}, {"first": "a"}, "expected a policy of each of first, second; found those of first"),
        ({"a": DQN}, {"first": "a", "second": "c"}, "Unknown policy of 'second' 'c'"),
        ({"a": DQN, "b": DQN}, {"first": "a", "second": "a"}, "Nobody plays by the policies b"),
        ({"a": DQN}, lambda agent_id, episode, world: "a", "and the episode's number; found <fun"),
        ({"a": DQN}, 5, "expected a dictionary, a function of the agent id, or one of .*; found 5"),
        ({"a": "random"}, None, "none of them learns"),
        ({"a": "dqn"}, None, r"policies\['a'\]: expected an agent"),
        ({"a/b": DQN}, None, "policy id: expected letters"),
        ({}, None, "policies: expected an agent"),
    ],
)
def test_a_map_that_leaves_somebody_out_is_refused(policies, policy_of, message):
    with pytest.raises(AgentkitError, match=message):
        agents_by_policy(config(policies=policies, policy_of=policy_of), SPECS)


def test_replays_that_are_none_in_one_process_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'served' is the server of a program"):
        agentkit.run(config(tmp_path / "run", replay="served"))
    with pytest.raises(ConfigError, match=r"replay \(--replay\): experience stays on the device"):
        agentkit.run(config(tmp_path / "run", environment="jax:tic_tac_toe", on_device=True, replay="reverb"))
    with pytest.raises(UnknownNameError, match="replay 'disk'"):
        config(replay="disk")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # Where Reverb is installed, too.
    with pytest.raises(MissingExtraError, match="'dm-reverb' is needed"):
        agentkit.run(config(tmp_path / "run", replay="reverb"))
    assert not (tmp_path / "run").exists()


def test_agents_that_differ_cannot_share_a_policy():
    with pytest.raises(
        SpecError, match=r"'row' and 'column' share the policy 'shared' and have different actions.*each"
    ):
        agentkit.run(config(environment="agentkit:matrix_game", environment_settings={"game": ([[1, 2]], [[1, 2]])}))


def test_a_run_is_resumed_with_its_own_policies_only(tmp_path):
    agentkit.run(config(tmp_path / "run", {"x": DQN, "y": DQN}, {"first": "x", "second": "y"}, num_steps=40))
    again = {"folder": tmp_path / "run", "policies": {"x": DQN, "y": DQN}, "num_steps": 60}
    with pytest.raises(CheckpointError, match="policy_of: saved"):
        agentkit.run(config(**again, policy_of={"first": "y", "second": "x"}), resume=True)
    with pytest.raises(CheckpointError, match=r"policies\['y'\]: saved agent=dqn, found ppo"):
        other = {**again, "policies": {"x": DQN, "y": PPO}}
        agentkit.run(config(**other, policy_of={"first": "x", "second": "y"}), resume=True)
    with pytest.raises(CheckpointError, match=r"policies: saved \['x', 'y'\], found \['x'\]"):
        other = {**again, "policies": {"x": DQN}}
        agentkit.run(config(**other, policy_of=None), resume=True)
    assert read_multi_agent_config(tmp_path / "run").policies["x"] == DQN.with_num_envs(1)


@dataclasses.dataclass
class Counting(agentkit.callbacks.Callback):
    """Notes events, adds a number to each episode's row, and ends the run."""

    end: int = 30
    events: list[str] = dataclasses.field(default_factory=list, init=False)
    num_episodes: int = dataclasses.field(default=0, init=False)

    def on_start(self, run, environment):
        assert environment.agent_specs().keys() == {"row", "column"}
        self.events.append("start")

    def on_episode(self, run, episode):
        self.num_episodes += 1
        episode.record["number"] = self.num_episodes
        assert {"episode_return", "episode_return/row"} <= episode.record.keys()
        if run.steps >= self.end:
            return agentkit.callbacks.Stop("enough")

    def on_learner_log(self, run, record):
        self.events.append("learner")

    def on_evaluation(self, run, record):
        assert "wins/row" in record and run.updates >= 0
        self.events.append("evaluation")

    def on_checkpoint(self, run, path):
        self.events.append("checkpoint")

    def on_end(self, run):
        self.events.append("end")

    def save(self):
        return {"num_episodes": self.num_episodes}

    def restore(self, state):
        self.num_episodes = state["num_episodes"]


class Watching(agentkit.callbacks.Callback):
    def on_step(self, run, step):
        raise AssertionError


def test_callbacks_see_the_run_end_it_and_go_on_with_it(tmp_path):
    callback = Counting()
    plan = config(
        tmp_path / "run", policy_of="each", environment="agentkit:matrix_game", num_steps=80, callbacks=[callback],
        evaluation_period=10, evaluation_episodes=1,
    )  # fmt: skip
    result = agentkit.run(plan)
    assert result.steps == 32 and result.stopped_by == "enough"
    assert set(callback.events) == {"start", "learner", "evaluation", "checkpoint", "end"}
    assert [row["number"] for row in agentkit.open_run(str(tmp_path / "run")).rows("train")] == list(range(1, 9))
    again = Counting(end=60)
    assert agentkit.resume(tmp_path / "run", callbacks=[again]).steps == 60 and again.num_episodes == 15
    assert agentkit.resume(tmp_path / "run", imports=[__name__]).steps == 64, "the folder's ends at each episode"
    stop = agentkit.callbacks.stop_at(return_above=-100.0)
    stopped = agentkit.run(dataclasses.replace(plan, run_directory=None, callbacks=[stop]))
    assert stopped.steps == 10 and "evaluation return" in stopped.stopped_by


def test_what_is_for_one_agent_refuses_a_run_of_several(tmp_path):
    agentkit.run(config(tmp_path / "run", num_steps=40))
    for call in (agentkit.evaluate, lambda run: agentkit.sample(run, num_steps=2)):
        with pytest.raises(ConfigError, match="is a run of several agents, and this is for runs of one"):
            call(tmp_path / "run")
    begins_there = agentkit.ExperimentConfig(DQN, Catch, 20, init_from=tmp_path / "run", **QUIET)
    with pytest.raises(ConfigError, match=r"init_from.*is a run of several agents, and this one is of one"):
        agentkit.run(begins_there)
    for callback, event in ((agentkit.callbacks.keep_best(), "on_evaluation_episode"), (Watching(), "on_step")):
        with pytest.raises(ConfigError, match=f"{type(callback).__name__} has {event}, which is of one agent's stream"):
            agentkit.run(config(), callbacks=[callback])


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--set", "min_replay_size=16", "--set", "batch_size=8", "--eval-every", "0"]
    train = ["train", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "each", "--run-directory", "run", *small]
    assert main([*train, "--steps", "60"]) == 0
    assert "2 agents by 2 policies: first, second" in capsys.readouterr().out
    assert main(["train", "--resume", "run", "--steps", "80"]) == 0
    assert saved(tmp_path / "run")["num_steps"] == 80
    assert main(["evaluate", "run", "--episodes", "5", "--opponent", "second=random"]) == 0
    out = capsys.readouterr().out
    assert "checkpoint of step 80" in out and "second: mean return" in out and "(opponent)" in out
    assert main(["evaluate", "run", "--episodes", "2", "--opponent", "second=run:first"]) == 0


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [["--count-steps-by", "agents"], ["--opponents", "uniform"], ["--opponents", "uniform", "--seeds", "0:2"]],
)
def test_what_is_for_several_agents_is_refused_for_one(words, capsys):
    assert main(["train", "dqn", "--env", "agentkit:catch", "--steps", "9", *words]) != 0
    assert f"{words[0]} is for several agents" in capsys.readouterr().err


def test_seeds_are_runs_of_a_group(tmp_path, capsys):
    agentkit.run_seeds(config(tmp_path / "group", num_steps=40), [3])
    agentkit.run(config(tmp_path / "alone", num_steps=40, seed=3))
    assert_equal(saved(tmp_path / "group" / "seed3")["learner"], saved(tmp_path / "alone")["learner"])
    assert main(["train", "--resume", str(tmp_path / "group"), "--steps", "60", "--keep-best"]) == 2
    assert "KeepBest has on_evaluation_episode, which is of one agent's stream" in capsys.readouterr().err


@pytest.mark.full
def test_a_group_of_seeds_goes_on(tmp_path):
    agentkit.run_seeds(config(tmp_path, policy_of="each", num_steps=40), [0, 3])
    assert main(["train", "--resume", str(tmp_path), "--steps", "60"]) == 0
    assert [saved(tmp_path / f"seed{seed}")["num_steps"] for seed in (0, 3)] == [60, 60]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--workers", "2", "--num-envs", "2"], "--workers is not for several agents"),
        (["--on-device"], "is written in JAX. Take 'jax:connect_four', 'jax:tic_tac_toe', 'jax:two_step_game', one of"),
        (["--jobs", "2"], "--jobs is of --seeds"),
        (["--wrapper", "step_limit(max_steps=3)"], "--wrapper is not for several agents"),
    ],
)
def test_options_of_one_agent_are_refused_with_the_reason(words, message, capsys):
    assert main(["train", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "each", "--steps", "9", *words]) != 0
    assert message in capsys.readouterr().err


LEARNER = dqn.make_agent(
    dqn.Config(
        batch_size=64, min_replay_size=500, hidden_sizes=(128,), n_step=2, discount=0.9, updates_per_call=8,
        target_update_period=100, epsilon=0.5,
    )
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("policy_of", ["shared", "each"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_dqns_beat_a_random_player_at_tic_tac_toe_from_either_side(seed, policy_of, tmp_path):
    agentkit.run(config(tmp_path / "run", LEARNER, policy_of, num_steps=40_000, seed=seed))
    for side, other in (("first", "second"), ("second", "first")):
        found = agentkit.evaluate_multi_agent(tmp_path / "run", 200, opponents={other: "random"})
        assert found[f"wins/{side}"] > 0.8, found


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dqns_learn_tic_tac_toe_in_eight_environments_at_once(seed, tmp_path):
    agentkit.run(config(tmp_path / "run", LEARNER, "each", num_steps=40_000, seed=seed, num_envs=8))
    for side, other in (("first", "second"), ("second", "first")):
        found = agentkit.evaluate_multi_agent(tmp_path / "run", 200, opponents={other: "random"})
        assert found[f"wins/{side}"] > 0.8, found


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agents_of_two_kinds_learn_a_matrix_game_in_lockstep(seed, tmp_path):
    """Defecting is the better answer to either choice: 4 rounds of -2 each."""
    agents = {"row": LEARNER, "column": PPO}
    settings = {"environment": "agentkit:matrix_game", "environment_settings": {"game": "prisoners_dilemma"}}
    agentkit.run(config(tmp_path / "run", agents, None, num_steps=4_000, seed=seed, **settings))
    found = agentkit.evaluate_multi_agent(tmp_path / "run", 3)
    assert (found["episode_return/row"], found["episode_return/column"]) == (-8.0, -8.0)


_KILLED = """
import pathlib, sys
sys.path.insert(0, {tests!r})
from test_multi_agent import MIXED, WHO, config
import agentkit
agentkit.run(config(pathlib.Path({folder!r}), MIXED, WHO, "agentkit:come_and_go", 100_000, checkpoint_period=40))
"""


@pytest.mark.full
def test_a_run_that_was_killed_goes_on_as_one_that_never_stopped(tmp_path):
    folder = tmp_path / "killed"
    code = _KILLED.format(tests=str(pathlib.Path(__file__).parent), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        deadline = time.monotonic() + 200
        while checkpoint.steps(folder / "checkpoints") == [] and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    step = saved(folder)["num_steps"]
    agentkit.resume(folder, num_steps=step + 60)
    agentkit.run(config(tmp_path / "whole", MIXED, WHO, "agentkit:come_and_go", step + 60, checkpoint_period=40))
    one, other = saved(tmp_path / "whole"), saved(folder)
    for name in ("learner", "actors", "loop", "counter"):
        assert_equal(one[name], other[name])
