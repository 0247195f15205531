"""The loop of several agents: where users of other libraries stumble, each with numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dm_env
import numpy as np
import pytest

from agentkit import checkpoint, core, multi_agent_loop
from agentkit.adders import NStepAdder
from agentkit.counting import Counter
from agentkit.envs.multi_agent.base import one_reward_spec
from agentkit.envs.multi_agent.come_and_go import ComeAndGo
from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment
from agentkit.envs.step_check import StepCheck
from agentkit.errors import CheckpointError, ConfigError, NonFiniteError, SpecError
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.specs import ACTION_MASK, BoundedArray, DiscreteArray
from agentkit.testing.adder import RecordingWriter, make_table

FIRST, MID, LAST = dm_env.StepType
PLAIN = one_reward_spec(BoundedArray((), np.float32, 0, 100), DiscreteArray(100))


def first(observation):
    return dm_env.TimeStep(FIRST, None, None, np.float32(observation))


def mid(reward, observation, discount=1.0):
    return dm_env.TimeStep(MID, reward, discount, np.float32(observation))


def last(reward, observation, discount=0.0):
    return dm_env.TimeStep(LAST, reward, discount, None if observation is None else np.float32(observation))


class Scripted(core.MultiAgentEnvironment):
    """Gives the time steps of a list, whatever anybody does; keeps the actions."""

    def __init__(self, *script: dict[str, dm_env.TimeStep], spec=PLAIN):
        self._script, self._number, self._spec = script, -1, spec
        self.actions: list[dict[str, Any]] = []

    def agent_specs(self):
        return dict.fromkeys(sorted({agent_id for each in self._script for agent_id in each} - {"nobody"}), self._spec)

    def reset(self):
        self._number = 0
        return self._script[0]

    def step(self, actions):
        self.actions.append({agent_id: int(action) for agent_id, action in actions.items()})
        self._number += 1
        return self._script[self._number]


class CountingActor(core.Actor):
    """Acts by counting up from `start`, and writes one-step transitions of gamma 0.5."""

    def __init__(self, start: int = 0, n: int = 1):
        self.writer = RecordingWriter([make_table(NStepAdder.layout(PLAIN, ()))], NStepAdder.history(n))
        self._adder = NStepAdder(self.writer, PLAIN, tables="table", n=n, discount=0.5)
        self.next = start

    def select_action(self, observation):
        self.next += 1
        return np.int32(self.next)

    def observe_first(self, timestep):
        self._adder.add_first(timestep)

    def observe(self, action, next_timestep):
        self._adder.add(action, next_timestep)

    def update(self, wait=False):
        pass

    def learned(self):
        """Observation, action, reward, discount, next observation of each transition."""
        return [tuple(float(leaf) for leaf in item.data[:5]) for item in self.writer.items]


def play(*script, n=1, num_steps=None, **settings):
    environment = Scripted(*script)
    actors = {agent_id: CountingActor(10 * i, n) for i, agent_id in enumerate(environment.agent_specs())}
    loop = MultiAgentLoop(environment, actors, **settings)
    record = None
    for _ in range(len(script) - 1 if num_steps is None else num_steps):
        record = loop.step()
    return record, {agent_id: actor.learned() for agent_id, actor in actors.items()}, loop


def test_an_agent_that_leaves_early_has_its_own_last_observation_and_reward():
    record, learned, _ = play(
        {"a": first(1), "b": first(2)},
        {"a": last(5.0, 3), "b": mid(1.0, 4)},
        {"b": mid(1.0, 5)},
        {"b": last(2.0, 6, discount=1.0)},
    )
    assert learned["a"] == [(1, 1, 5, 0, 3)]
    assert learned["b"] == [(2, 11, 1, 0.5, 4), (4, 12, 1, 0.5, 5), (5, 13, 2, 0.5, 6)]
    assert record["episode_return/a"] == 5.0 and record["episode_return/b"] == 4.0
    assert (record["episode_return"], record["episode_length"], record["agent_steps"]) == (9.0, 3, 4)


def test_an_agent_that_joins_and_ends_at_once_is_counted_and_not_learned_from():
    record, learned, loop = play({"a": first(1)}, {"a": mid(0.0, 2), "b": last(7.0, 3)}, {"a": last(1.0, 4)})
    assert learned["b"] == [] and record["episode_return/b"] == 7.0
    assert loop.num_lost == record["agents_lost"] == 1


def test_an_agent_that_comes_back_and_ends_at_once_shows_in_the_record_of_its_episode():
    record, learned, loop = play(
        {"a": first(1), "b": first(1)}, {"a": mid(0.0, 2), "b": last(5.0, 2)}, {"a": mid(0.0, 3), "b": last(5.0, 3)},
        {"a": last(1.0, 4)},
    )  # fmt: skip
    assert learned["b"] == [(1, 11, 5, 0, 2)] and record["episode_return/b"] == 10.0
    assert loop.num_lost == record["agents_lost"] == 1
    _, _, loop = play({"a": first(1)}, {"a": last(0.0, 2), "b": last(1.0, 2)})
    assert (loop.step()["agents_lost"], loop.num_lost) == (1, 2), "of each episode, and of all"


def test_an_episode_that_ends_before_each_agent_has_had_a_turn_is_whole():
    record, learned, loop = play({"a": first(1)}, {"a": last(1.0, 2), "b": last(-1.0, 2)})
    assert learned == {"a": [(1, 1, 1, 0, 2)], "b": []}
    assert (record["episode_return/a"], record["episode_return/b"], loop.num_lost) == (1.0, -1.0, 1)


def test_an_action_is_recorded_with_what_followed_it_at_the_agents_next_turn():
    # The environment gives "b" 1 + 0.5 * 4 = 3 for two others' moves, discounts multiplied: 0.5 * 0.5.
    record, learned, _ = play(
        {"b": first(1)},
        {"a": first(2)},
        {"a": mid(0.0, 3)},
        {"b": mid(1.0 + 0.5 * 4.0, 4, discount=0.25)},
        {"b": last(2.0, 5), "a": last(6.0, 5)},
    )
    assert learned["b"] == [(1, 11, 3, 0.5 * 0.25, 4), (4, 12, 2, 0, 5)]
    assert learned["a"] == [(2, 1, 0, 0.5, 3), (3, 2, 6, 0, 5)]
    assert record["agent_steps"] == 4


def test_gamma_is_applied_once_a_turn_however_many_others_have_theirs_between():
    # Two-step items of "a": 1 + gamma * 2 and gamma**2, although four steps of the environment went by.
    _, learned, _ = play(
        {"a": first(1)}, {"b": first(0)}, {"a": mid(1.0, 2)}, {"b": mid(0.0, 0)}, {"a": mid(2.0, 3)},
        {"a": last(0.0, 4, discount=1.0), "b": last(0.0, 0)}, n=2,
    )  # fmt: skip
    assert learned["a"][1] == (1, 1, 1 + 0.5 * 2, 0.25, 3)


def test_an_end_of_all_by_a_time_limit_is_none_by_termination():
    _, learned, _ = play({"a": first(1), "b": first(1)}, {"a": last(1.0, 2, discount=1.0), "b": last(1.0, 2)})
    assert [t[3] for t in learned["a"] + learned["b"]] == [0.5, 0.0]


def test_an_agent_without_an_observation_at_its_end_ends_with_its_last_one():
    _, learned, _ = play({"a": first(7)}, {"a": last(3.0, None)})
    assert learned["a"] == [(7, 1, 3, 0, 7)]


def test_an_agent_that_is_cut_off_needs_an_observation():
    with pytest.raises(SpecError, match=r"'a': found no observation \(None\), which only an agent that terminated"):
        play({"a": first(7)}, {"a": last(3.0, None, discount=1.0)})


def test_an_agent_comes_late_and_comes_back_in_one_episode():
    record, learned, _ = play(
        {"a": first(1)},
        {"a": mid(0.0, 2), "b": first(3)},
        {"a": mid(0.0, 3), "b": last(1.0, 4)},
        {"a": mid(0.0, 4), "b": first(5)},
        {"a": last(0.0, 5), "b": last(2.0, 6)},
    )
    assert learned["b"] == [(3, 11, 1, 0, 4), (5, 12, 2, 0, 6)]
    assert record["episode_return/b"] == 3.0


ACTS = first(1)


@pytest.mark.parametrize(
    "script, message",
    [
        ([{"a": mid(0.0, 1)}], "of agent 'a': found MID as its first time step, expected FIRST"),
        ([{"a": ACTS}, {"a": first(2)}], "of agent 'a': found FIRST although it has not ended"),
        ([{"a": ACTS, "b": ACTS}, {"a": last(0.0, 1)}], "the episode ended without a LAST time step of b"),
        ([{"a": ACTS}, {"nobody": ACTS, "a": last(0.0, 1)}], "of 'nobody', of whom agent_specs"),
        ([{"a": last(0.0, 1)}, {}], "an episode in which nobody is to act"),
        ([{"a": ACTS._replace(reward=5.0)}], "of agent 'a': found FIRST with the reward 5.0, from which nobody"),
    ],
)
def test_an_environment_that_breaks_a_rule_is_refused(script, message):
    with pytest.raises(SpecError, match=message):
        play(*script, num_steps=1)


def masked(step_type, mask):
    observation = {"observation": np.float32(0), ACTION_MASK: np.array(mask, np.int8)}
    return dm_env.TimeStep(step_type, *((None, None) if step_type == FIRST else (0.0, 1.0)), observation)


def test_a_mask_that_allows_nothing_is_refused_where_the_agent_is_to_act_only():
    seen = {"observation": PLAIN.observations, ACTION_MASK: BoundedArray((3,), np.int8, 0, 1)}
    spec = one_reward_spec(seen, DiscreteArray(3))
    recorder = type("Silent", (CountingActor,), {"observe_first": lambda *_: None, "observe": lambda *_: None})
    good = Scripted({"a": masked(FIRST, [0, 1, 0])}, {"a": masked(LAST, [0, 0, 0])}, spec=spec)
    assert MultiAgentLoop(good, {"a": recorder()}).step() is not None
    bad = Scripted({"a": masked(FIRST, [0, 1, 0])}, {"a": masked(MID, [0, 0, 0])}, spec=spec)
    with pytest.raises(SpecError, match="of agent 'a': found an action_mask that allows nothing"):
        MultiAgentLoop(bad, {"a": recorder()}).step()


def test_checks_name_the_agent():
    for bad, error in ((np.nan, NonFiniteError), ("much", SpecError)):
        with pytest.raises(error, match=r"^Agent 'a': At step 1 the environment's reward"):
            play({"a": first(1)}, {"a": last(bad, 2)}, checks={"a": StepCheck(PLAIN)})


def test_actors_of_other_ids_are_refused():
    with pytest.raises(ConfigError, match="Expected an actor for each of a; found them for b"):
        MultiAgentLoop(Scripted({"a": ACTS}), {"b": CountingActor()})


def test_counts_are_of_the_environments_steps_and_a_cut_episode_is_no_end():
    counter, logged = Counter(), []
    loop = MultiAgentLoop(
        Scripted(*[{"a": ACTS}] + [{"a": mid(1.0, 1)}] * 9),
        {"a": type("Silent", (CountingActor,), {"observe_first": lambda *_: None})()},
        counter=counter, log=logged.append, max_episode_steps=3,
    )  # fmt: skip
    loop._actors["a"].observe = lambda *_: None
    records = loop.run(num_episodes=2)
    assert [(r["episode_return"], r["episode_length"], r["steps"], r["episodes"]) for r in records] == [
        (3.0, 3, 3, 1), (3.0, 3, 6, 2)
    ]  # fmt: skip
    assert logged == records and loop.num_cut == 2 and counter.counts() == {"steps": 6, "episodes": 2}


def test_steps_may_be_counted_by_agents():
    """Both act, then one of them alone: two steps of the environment, three of agents."""
    script = [{"a": first(0), "b": first(0)}, {"a": mid(1, 1), "b": last(1, 1)}, {"a": last(1, 2)}]
    for count_agents, expected in ((False, 2), (True, 3)):
        environment, counter = Scripted(*script), Counter()
        actors = {agent_id: CountingActor() for agent_id in "ab"}
        loop = MultiAgentLoop(environment, actors, counter=counter, count_agents=count_agents)
        (record,) = loop.run(num_episodes=1)
        assert loop.num_steps == record["steps"] == counter.get("steps") == expected
        assert record["agent_steps"] == 3 and record["episode_length"] == 2


class SavedActor(CountingActor):
    def save(self):
        return {"next": self.next, "adder": self._adder.save()}

    def restore(self, state):
        self.next = int(state["next"])
        self._adder.restore(state["adder"])

    def select_action(self, observation):
        self.next += 1
        return np.int32(self.next % 3 == 0)


def come_and_go(seed=0):
    environment = ResumableMultiAgentEnvironment(ComeAndGo(), seed)
    actors = {agent_id: Silent(i) for i, agent_id in enumerate(environment.agent_specs())}
    return environment, actors, MultiAgentLoop(environment, actors)


class Silent(SavedActor):
    """Keeps what it is told, as plain numbers, whatever the observation's shape."""

    def __init__(self, start):
        self.next, self.told = start, []

    def observe_first(self, timestep):
        self.told.append(timestep)

    def observe(self, action, next_timestep):
        self.told.append((int(action), next_timestep))

    def save(self):
        return {"next": self.next}

    def restore(self, state):
        self.next = int(state["next"])


def test_returns_are_those_of_the_environment_whoever_comes_and_goes():
    environment, _, loop = come_and_go()
    for _ in range(20):
        while (record := loop.step()) is None:
            pass
        assert {
            agent_id: record[f"episode_return/{agent_id}"] for agent_id in environment.returns
        } == environment.returns
        assert record["agents_lost"] == environment.num_lost
    assert loop.num_lost > 5


@pytest.mark.parametrize("num_steps", [0, 3, 11, 50])
def test_a_saved_loop_goes_on_bit_for_bit_in_mid_episode(num_steps, tmp_path):
    _, actors, loop = come_and_go()
    for _ in range(num_steps):
        loop.step()
    state = {"loop": loop.save(), "actors": {agent_id: actor.save() for agent_id, actor in actors.items()}}
    path = checkpoint.write(tmp_path, 1, state)
    for actor in actors.values():
        actor.told.clear()
    records = [loop.step() for _ in range(60)]
    found = checkpoint.read_latest(tmp_path).state
    assert path.exists()
    _, others, other = come_and_go(seed=9)
    other.step()
    other.restore(found["loop"])
    for agent_id, actor in others.items():
        actor.told.clear()
        actor.restore(found["actors"][agent_id])
    again = [other.step() for _ in range(60)]
    drop = {"steps_per_second", "steps", "episodes"}
    assert [r and {k: v for k, v in r.items() if k not in drop} for r in again] == [
        r and {k: v for k, v in r.items() if k not in drop} for r in records
    ]
    assert repr({i: actor.told for i, actor in others.items()}) == repr({i: actor.told for i, actor in actors.items()})


def test_a_resumed_episode_is_timed_from_where_it_goes_on(monkeypatch):
    """A step takes a second, by a clock that stands at 0 where the resumed process begins."""
    clock = SimpleNamespace(seconds=0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(multi_agent_loop, "time", clock)

    def step(loop):
        seen = loop.begin_step()
        clock.seconds += 1
        return loop.end_step({agent_id: loop.choose(agent_id, each) for agent_id, each in seen.items()})

    _, _, loop = come_and_go()
    for _ in range(7):
        step(loop)
    clock.seconds = 0
    _, _, resumed = come_and_go()
    resumed.restore(loop.save())
    records = [record for _ in range(60) if (record := step(resumed)) is not None]
    assert len(records) > 1 and {record["steps_per_second"] for record in records} == {1.0}


def test_a_restored_loop_without_its_unfinished_episode_begins_another_one():
    _, _, loop = come_and_go()
    for _ in range(3):
        loop.step()
    state = loop.save()
    _, actors, other = come_and_go()
    other.restore(state, mid_episode=False)
    other.step()
    assert other.num_steps == 4
    assert all(actor.told[0].first() for actor in actors.values() if actor.told)


def test_a_checkpoint_of_other_agents_is_refused():
    _, _, loop = come_and_go()
    loop.step()
    with pytest.raises(CheckpointError, match="is of the agents agent_0, agent_1, agent_2, agent_3; found a"):
        MultiAgentLoop(Scripted({"a": ACTS}), {"a": CountingActor()}).restore(loop.save())
