"""Policies by episode: who plays by which is a function of agent id and episode's number."""

import collections
import dataclasses
import itertools
import sys

import numpy as np
import pytest

import agentkit
from agentkit import specs
from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec
from agentkit.errors import AgentkitError, ConfigError, SpecError, UnknownNameError
from agentkit.experiment import read_multi_agent_config
from agentkit.experiment.local import started
from agentkit.experiment.multi_agent.assigning import who_plays
from agentkit.experiment.multi_agent.assigning.by_episode import Place
from agentkit.experiment.multi_agent.config import changes_by_episode
from agentkit.experiment.publishing.card import returns_of
from agentkit.experiment.runs.learner_folders import newest_of_each
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.experiment.training.switched_state import as_launched
from agentkit.learning import Linear
from tests.experiment.test_multi_agent import DQN, PPO, assert_equal, config, saved

TWO_STEPS = dqn.make_agent(dataclasses.replace(DQN.config, n_step=2, discount=0.5))


FALLING = ppo.make_agent(dataclasses.replace(PPO.config, clip_epsilon=Linear(0.4, 0.1, 300, by="steps")))


class Relay(TurnEnvironment):
    """Has four steps: x acts at 0, 1 and 3, away in between; y at 1 to 3. Rewards are 10 times who, and when."""

    def __init__(self, seed=0):
        seen = specs.Array((2,), np.float32)
        super().__init__(dict.fromkeys("xy", one_reward_spec(seen, specs.DiscreteArray(2, np.int32))), seed)

    def _start(self):
        self._step = 0

    def _advance(self, actions):
        for agent_id in actions:
            self._reward(agent_id, 10.0 * "_xy".index(agent_id) + self._step)
        self._step += 1
        for agent_id in {2: "x", 4: "xy"}.get(self._step, ""):
            self._end(agent_id, self._observe(agent_id))

    def _acting(self):
        return ["x", "xy", "y", "xy", ""][self._step]

    def _observe(self, agent_id):
        return np.array(["_xy".index(agent_id), self._step], np.float32)


def in_threes(agent_id, episode):
    """Each by its own in the first episode, both by a in the second, both by b in the third."""
    return ["a" if agent_id == "x" else "b", "a", "b"][episode % 3]


def drawn(agent_id, episode):
    who = np.random.default_rng([7, episode]).permutation(["a", "b", "b", "chance"])
    return str(who["xy0123".index(agent_id[-1]) % 4])


def relay(folder=None, policy_of=in_threes, **settings):
    return config(folder, {"a": TWO_STEPS, "b": TWO_STEPS}, policy_of, Relay, **settings)


def rows_of(learning):
    found, _ = learning.replay.contents(learning.table)
    return [tuple(map(float, (*seen, reward))) for seen, reward in zip(found.observation, found.reward, strict=True)]


# Who, when, and what the agent got then and half of what at its next step: as `Relay` says. An episode's first state
# is in an item of one reward, too (decision 57), and items come one step late (decision 11). By the step after which.
X = {2: [(1, 0, 10.0), (1, 0, 15.5), (1, 1, 11.0)], 3: [], 4: [(1, 3, 13.0)]}
Y = {2: [], 3: [(2, 1, 21.0)], 4: [(2, 1, 32.0), (2, 2, 33.5), (2, 3, 23.0)]}


def test_each_policy_learns_from_what_its_agents_did_in_their_episodes():
    x, y, both = ([row for step in (2, 3, 4) for each in who for row in each[step]] for who in ([X], [Y], [X, Y]))
    with started(relay(num_steps=16), False) as (training, _):
        work = training.work
        a, b = work.learning
        for expected in ((x, y), (x + both, y), (x + both, y + both), (x + both + x, y + both + y)):
            for _ in range(4):
                work.step()
            assert (rows_of(a), rows_of(b)) == expected


def test_environments_that_step_together_play_different_episodes(tmp_path):
    """Of two the first plays the episodes 0, 2, 4 and the second 1, 3, 5, all of four steps: by `in_threes` again."""
    of_x, of_y = ([row for step in (2, 3, 4) for row in who[step]] for who in (X, Y))
    with started(relay(tmp_path, num_steps=24, num_envs=2), False) as (training, _):
        work, found = training.work, []
        for _ in range(3):
            for _ in range(4):
                work.step()
            found.append([collections.Counter(rows_of(each)) for each in work.learning])
        chosen = [work.by_episode.num_actions(policy) for policy in "ab"]
    expected = [(of_x * 2 + of_y, of_y), (of_x * 3 + of_y, of_x + of_y * 3), (of_x * 4 + of_y * 2, of_x * 2 + of_y * 4)]
    assert found == [[collections.Counter(rows) for rows in each] for each in expected]
    assert chosen == [18, 18]


def test_actions_and_returns_are_told_by_policy(tmp_path):
    """x takes 3 actions in each episode for a return of 34, y 3 for one of 66, of 4 steps of the environment."""
    with started(relay(tmp_path, num_steps=12), False) as (training, stop):
        result = training.train(stop)
        shares = [each.learner._callbacks.steps_per_action() for each in training.work.learning]
    assert shares == [12 / 9, 12 / 9] and result.steps == 12
    rows = agentkit.open_run(str(tmp_path)).rows("train")
    assert [row["episode_return/x"] for row in rows] == [34.0] * 3
    assert [row["agent_steps/a"] for row in rows] == [3, 9, 9] and [row["agent_steps/b"] for row in rows] == [3, 3, 9]
    assert [row.get("policy_return/a") for row in rows] == [34.0, 50.0, None]
    assert [row.get("policy_return/b") for row in rows] == [66.0, None, 50.0]


def test_a_schedule_counts_the_actions_that_a_policy_has_learned_from():
    """a has acted 9 times in the first two episodes, of 8 steps, and b 3 times."""
    with started(relay(num_steps=12), False) as (training, _):
        for _ in range(8):
            training.work.step()
        assert [each.learner._callbacks.steps_per_action() for each in training.work.learning] == [8 / 9, 8 / 3]


def test_a_function_that_changes_nothing_is_a_map_for_the_whole_run_to_the_bit(tmp_path):
    for name, policy_of in (("whole", None), ("episodes", lambda agent_id, episode: "only")):
        agentkit.run(config(tmp_path / name, {"only": TWO_STEPS}, policy_of, Relay, num_steps=40))
    one, other = saved(tmp_path / "whole"), saved(tmp_path / "episodes")
    assert int(one["learner"]["only"]["num_updates"]) > 1
    assert_equal(one["learner"], other["learner"])
    for agent_id, actor in one["actors"].items():
        assert_equal(actor, other["actors"][agent_id]["actors"]["only"])


@pytest.mark.parametrize(
    "b, environment, episodes, more",
    [
        (TWO_STEPS, Relay, 30, {}),
        (TWO_STEPS, Relay, 30, {"num_envs": 3}),
        pytest.param(FALLING, "agentkit:come_and_go", 4, {}, marks=pytest.mark.full),
    ],
)
def test_a_run_is_resumed_to_the_bit_in_mid_episode(b, environment, episodes, more, tmp_path):
    """The function is found by its name; how often each policy has acted, which schedules ask for, is the actors'."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    policies = {"a": TWO_STEPS, "b": b, "chance": "random"}
    given = {"policies": policies, "policy_of": drawn, "environment": environment, **more}
    agentkit.run(config(whole, **given, num_steps=250))
    agentkit.run(config(parts, **given, num_steps=121))
    begun = saved(parts)
    going_on = [begun["loop"]] if "turns" in begun["loop"] else begun["loop"]["environments"].values()
    assert all(each["turns"] for each in going_on), "choose another step"
    assert begun["counter"]["counts"]["episodes"] == episodes, "choose another step"
    assert drawn("x", episodes) != drawn("x", 0), "choose another step"
    assert read_multi_agent_config(parts).policy_of is drawn
    agentkit.resume(parts, num_steps=250)
    one, other = saved(whole), saved(parts)
    for name in ("learner", "actors", "loop", "counter", "by_episode"):
        assert_equal(one[name], other[name])
    assert min(int(learner["num_updates"]) for learner in other["learner"].values()) > 0
    rows = [agentkit.open_run(str(run)).rows("train") for run in (whole, parts)]
    assert [row["agent_steps/b"] for row in rows[0]] == [row["agent_steps/b"] for row in rows[1]]


RETURNS = {"policy_return/a": 3.0, "policy_return/b": 5.0}
SAYS = {"x": "a", "y": "b"}


def says(agent_id, episode):
    return SAYS[agent_id]


def test_a_function_that_says_something_else_when_an_episode_goes_on_is_refused(tmp_path, monkeypatch):
    """As one does that asks hash() of a string, which each process answers in its own way."""
    for name, num_steps in (("at an end", 8), ("within", 10)):
        agentkit.run(relay(tmp_path / name, says, num_steps=num_steps))
    monkeypatch.setattr(sys.modules[__name__], "SAYS", {"x": "b", "y": "a"})
    with pytest.raises(ResumeError, match=r"of episode 2 it says .*'b'.*, and when the run was saved it said .*'a'"):
        agentkit.resume(tmp_path / "within", num_steps=20)
    assert agentkit.resume(tmp_path / "at an end", num_steps=20).steps == 20


def test_a_policys_return_is_of_those_who_took_part(tmp_path):
    with started(relay(tmp_path, num_steps=4), False) as (training, _):
        work = training.work
        work.by_episode.begin(0)
        for taking_part in (["x"], ["y"], ["x", "y"]):
            for agent_id, actor in work.actors.items():
                actor.takes_part[0] = agent_id in taking_part
            found = work.by_episode.returns({"episode_return/x": 3.0, "episode_return/y": 5.0})
            assert found == {
                name: value for name, value in RETURNS.items() if "_xy"["_ab".index(name[-1])] in taking_part
            }


def test_each_evaluation_plays_the_episodes_from_0_on(tmp_path):
    """Of the three a plays x, then both, then nobody; b the rest."""
    result = agentkit.run(relay(tmp_path, num_steps=20, evaluation_period=10, evaluation_episodes=3))
    again = agentkit.evaluate_multi_agent(tmp_path, 3)
    for found in (*result.evaluations, again):
        assert (found["policy_return/a"], found["policy_return/b"]) == ((34 + 50) / 2, (66 + 50) / 2)
        assert (found["episode_return/x"], found["episode_return/y"]) == (34.0, 66.0)
    against = agentkit.evaluate_multi_agent(tmp_path, 3, opponents={"x": "random"})
    assert (against["policy_return/a"], against["policy_return/b"]) == (66.0, 66.0), "x is nobody's"
    for policy, mean in (("a", (34 + 50) / 2), ("b", (66 + 50) / 2)):
        assert returns_of(tmp_path, None, policy=policy).mean == mean, "as its card says"
    assert agentkit.load(tmp_path, policy="b").select_action(np.zeros(2, np.float32)) in (0, 1)
    with pytest.raises(ConfigError, match="places of a policy's agents, which change by episode in this run"):
        agentkit.play_tournament(tmp_path, 1)


@pytest.mark.parametrize(
    "function, expected",
    [
        (in_threes, True),
        (lambda agent_id, episode, **more: "a", True),
        (lambda agent_id, episode=0: "a", True),
        (lambda agent_id: "a", False),
        (lambda agent_id, suffix="": "a", False),
        ({"x": "a"}.get, False),
        ({"x": "a"}, False),
        ("shared", False),
        (None, False),
    ],
)
def test_which_function_is_one_of_the_episode(function, expected):
    assert changes_by_episode(function) is expected


def forgets(agent_id, episode):
    return "a" if agent_id == "x" or episode < 2 else "c"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"on_device": True}, "beside on_device=True; found a function of agent id and episode. The compiled loop"),
        ({"opponents": agentkit.Pool()}, r"beside opponents=Pool\(.*\); found a function .*Leave opponents out"),
        ({"policy_of": forgets}, "Unknown policy of 'y' in episode 2 'c'"),
        ({"policy_of": lambda agent_id, episode: "a"}, "Nobody plays by the policies b in the episodes 0 to 99"),
        ({"policy_of": (lambda agent_id, episode, calls=[]: calls.append(0) or "ab"[len(calls) // 3 % 2])}, "and then"),
    ],
)
def test_what_does_not_go_is_refused_before_anything_starts(changes, message, tmp_path):
    with pytest.raises(AgentkitError, match=message):
        agentkit.run(relay(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_programs_actors_share_its_episodes():
    """Each number is one actor's, and a function of odd and even ones says both to each."""
    for num_actors in (1, 2, 3, 4):
        places = [Place(number, num_actors) for number in range(num_actors)]
        numbers = [[place.episode(count) for count in range(12)] for place in places]
        assert sorted(itertools.chain(*numbers)) == list(range(12 * num_actors))
        assert all(sum(number % 2 for number in own) == 6 for own in numbers)


@pytest.mark.full
def test_a_program_counts_by_policy_and_one_process_counts_on(tmp_path):
    """Both play 3 of an episode's 4 steps; a program and one process agree on who has acted how often."""
    judged = {"evaluation_period": 200, "evaluation_episodes": 3}
    agentkit.launch(relay(tmp_path, replay="served", num_steps=400, **judged), num_actors=2, engine="threads")
    run = agentkit.open_run(str(tmp_path))
    for row in run.rows("evaluation"):
        assert (row["policy_return/a"], row["policy_return/b"]) == ((34 + 50) / 2, (66 + 50) / 2)
    returns = {(row.get("policy_return/a"), row.get("policy_return/b")) for row in run.rows("train")}
    assert returns == {(34.0, 66.0), (50.0, None), (None, 50.0)}
    of_a = newest_of_each(tmp_path, ["a", "b"])["a"].state
    totals, explored = of_a["totals"], of_a["explored"]
    assert abs(totals["agent_turns"] - totals["agent_steps"] / 4) < 4, "each agent plays by two policies"
    assert totals["agent_steps/a"] + totals["agent_steps/b"] == totals["agent_steps"] > 500
    assert totals["episodes"] in range(totals["steps"] // 4 - 2, totals["steps"] // 4 + 1)
    assert main(["train", "--resume", str(tmp_path), "--steps", "600", "--replay", "in_process"]) == 0
    state = saved(tmp_path)
    now = as_launched(state)["totals"]
    assert now["agent_steps/a"] + now["agent_steps/b"] == now["agent_steps"] == state["num_agent_steps"]
    for policy in "ab":
        assert now[f"agent_steps/{policy}"] > totals[f"agent_steps/{policy}"] > 150
    # The episodes that were cut off with the program have had steps, and did not end.
    assert now["episodes"] == totals["episodes"] + (now["steps"] - totals["steps"]) // 4
    # A schedule of one of an agent's policies has had a quarter of what the actor's agents did.
    since = (now["agent_steps"] - totals["agent_steps"]) / 4
    assert abs(as_launched(state)["explored"]["actor-0"] - max(explored.values()) - since) < 10


def test_inference_nodes_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"asked for the agents of a policy, which change by episode here\. Leave out"
    ):
        agentkit.launch(relay(tmp_path / "run", replay="served"), num_inference=1)
    assert not (tmp_path / "run").exists()


UNLIKE = {"environment": "agentkit:matrix_game", "environment_settings": {"game": ([[1, 2]], [[1, 2]])}}


def swapped(agent_id, episode):
    return "ab"[(agent_id == "row") ^ (episode % 2)]


def test_what_is_found_late_is_refused_with_agent_episode_and_policy(monkeypatch):
    """One episode is tried before the start, and the second names what does not fit."""
    with pytest.raises(SpecError, match="'column' and 'row' share the policy 'a' and have different actions"):
        agentkit.run(config(None, {"a": DQN, "b": DQN}, swapped, **UNLIKE))
    monkeypatch.setattr(who_plays, "TRIED_EPISODES", 1)
    with pytest.raises(SpecError, match="in episode 1 it says that 'row' plays by 'a', which is of agents with other"):
        agentkit.run(config(None, {"a": DQN, "b": DQN}, swapped, **UNLIKE))
    with pytest.raises(UnknownNameError, match="Unknown policy of 'y' in episode 2 'c'"):
        agentkit.run(config(None, {"a": DQN}, forgets, Relay))


def test_a_lambda_is_run_and_cannot_be_found_again(tmp_path):
    policy_of = lambda agent_id, episode: in_threes(agent_id, episode)  # noqa: E731
    agentkit.run(relay(tmp_path, policy_of, num_steps=8))
    with pytest.raises(ConfigError, match="lambda"):
        agentkit.resume(tmp_path, num_steps=12)
    agentkit.run(relay(tmp_path, policy_of, num_steps=12), resume=True)
    with pytest.raises(AgentkitError, match="policy_of: saved"):
        agentkit.run(relay(tmp_path, num_steps=16), resume=True)
