"""PettingZoo environments that are nearly right: each is refused in one line that names it, the step and the agent."""

import gymnasium
import numpy as np
import pytest

pettingzoo = pytest.importorskip("pettingzoo")

from agentkit.envs.multi_agent.pettingzoo import adapt  # noqa: E402
from agentkit.errors import SpecError  # noqa: E402

SPACE, CHOICE = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)
SEEN = np.zeros(2, np.float32)


class Spaces:
    possible_agents = ("a", "b")
    metadata = {"name": "nearly_v0"}  # noqa: RUF012

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return CHOICE

    def each(self, value):
        return dict.fromkeys(self.possible_agents, value)


class Together(Spaces, pettingzoo.ParallelEnv):
    """Returns at its second step what `changes` make of the parts."""

    def __init__(self, **changes):
        self._changes = changes

    def reset(self, seed=None, options=None):
        self.agents, self._time = list(self.possible_agents), 0
        return self.each(SEEN), self.each({})

    def step(self, actions):
        self._time += 1
        parts = {"observations": self.each(SEEN), "rewards": self.each(1.0), "terminations": self.each(False)}
        parts |= {"truncations": self.each(False), "infos": self.each({})}
        return tuple((parts | self._changes if self._time == 2 else parts).values())


class InTurns(Spaces, pettingzoo.AECEnv):
    """Sets at its second step what `changes` say."""

    def __init__(self, **changes):
        self._changes = changes

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self._time = list(self.possible_agents), "a", 0
        self.rewards, self._cumulative_rewards = self.each(0.0), self.each(0.0)
        self.terminations, self.truncations, self.infos = self.each(False), self.each(False), self.each({})

    def step(self, action):
        if action is None:
            return
        self._time += 1
        self.agent_selection = "ab"[self._time % 2]
        self.rewards = self.each(1.0)
        vars(self).update(self._changes if self._time == 2 else {})
        self._accumulate_rewards()

    def observe(self, agent):
        return SEEN


def play(environment):
    """Returns the time steps of four steps."""
    timesteps = [environment.reset()]
    for _ in range(4):
        timesteps.append(environment.step(dict.fromkeys(timesteps[-1], np.int32(0))))
    return timesteps


def refused(environment, message):
    with pytest.raises(SpecError) as error:
        play(adapt(environment))
    assert str(error.value).startswith(message) and len(str(error.value)) < 400 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rewards": {"a": 1.0, "b": None}}, ", agent 'b': reward: expected one number, found None"),
        ({"rewards": {"a": {"x": 1}, "b": 0}}, ", agent 'a': reward: expected one number, found a dictionary of x"),
        ({"rewards": {"a": 1.0, "b": SEEN}}, ", agent 'b': reward: expected one number, found ndarray array([0., 0.]"),
        ({"rewards": 1.0}, ": rewards: expected a dictionary by agent, found float 1.0"),
        ({"terminations": False}, ": terminations: expected a dictionary by agent, found bool False"),
        ({"terminations": {"a": "no", "b": "no"}}, ", agent 'a': terminated: expected True or False, found str 'no'"),
        ({"observations": SEEN}, ": observations: expected a dictionary by agent, found ndarray"),
        ({"observations": {"a": SEEN}}, ", agent 'b': observation: expected float32[2], found None"),
        ({"rewards": {"b": 1.0}}, ", agent 'a': rewards: expected one of each agent that has acted"),
        ({"terminations": {"__all__": False}}, ", agent 'a': terminations: expected one of each agent that has acted"),
        ({"truncations": {"a": True}}, ", agent 'b': truncations: expected one of each agent that has acted"),
        ({"infos": {"a": {}, "b": 1.0}}, ", agent 'b': info: expected a dictionary, found float 1.0"),
        (
            {"of_old": {}},
            ": step() returned 6 values; expected five dictionaries by agent: observations, rewards, term",
        ),
    ],
)
def test_a_step_of_all_is_refused(changes, message):
    refused(Together(**changes), f"nearly_v0, step 2 of an episode{message}")


@pytest.mark.parametrize(
    "changes",
    [{"rewards": {"a": np.ones(1), "b": [1]}}, {"infos": {"a": None}}, {"infos": None}],
)
def test_a_step_that_one_agents_environment_may_take_is_taken(changes):
    usual, found = play(adapt(Together())), play(adapt(Together(**changes)))
    assert [t["b"][:3] for t in found] == [t["b"][:3] for t in usual]


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"rewards": {"a": 1.0, "b": None}},
            "agent 'b': rewards: expected one number of each agent, found list [1.0, N",
        ),
        ({"rewards": 1.0}, "agent 'b': rewards: expected a dictionary by agent, found float 1.0. Set it in reset()"),
        (
            {"rewards": {"b": 1.0}, "_cumulative_rewards": {"b": 0}},
            "agent 'a': _cumulative_rewards: expected one of each of ['a', 'b'], found",
        ),
        (
            {"terminations": {"b": False}},
            "agent 'a': terminations: expected one of each of ['a', 'b'], found a dictionary",
        ),
        ({"infos": None}, "agent 'a': infos: expected a dictionary by agent, found None"),
        ({"truncations": {"a": "no", "b": "no"}}, "agent 'a': truncated: expected True or False, found str 'no'"),
        (
            {"truncations": {"a": True, "b": False}},
            "agent 'a': has ended, was stepped with None, and is in `agents` still. Begin step",
        ),
        (
            {"last": lambda: (SEEN, 0.0, False, {})},
            "agent 'a': last() returned 4 values; expected five: observation, rew",
        ),
        ({"last": lambda: (None, 0.0, False, False, {})}, "agent 'a': observation: expected float32[2], found None"),
    ],
)
def test_a_turn_is_refused(changes, message):
    refused(InTurns(**changes), f"nearly_v0, step 2 of an episode, {message}")


class WithoutInfo(Together):
    def reset(self, seed=None, options=None):
        return super().reset()[0]


class WithoutSeed(Together):
    def reset(self):
        return super().reset()


class WithoutAgents(Together):
    def reset(self, seed=None, options=None):
        return self.each(SEEN), self.each({})


class TurnsWithoutSeed(InTurns):
    def reset(self):
        super().reset()


class TurnsWithoutInfos(InTurns):
    def reset(self, seed=None, options=None):
        super().reset()
        del self.infos


@pytest.mark.parametrize(
    "cls, message",
    [
        (
            WithoutInfo,
            ", step 0 of an episode: reset() returned a dictionary of a, b; expected two dictionaries by agent",
        ),
        (
            WithoutSeed,
            ", step 0 of an episode: reset() takes no 'seed'; expected def reset(self, seed=None, options=None)",
        ),
        (
            WithoutAgents,
            ": expected `agents`, found none. Set self.agents in reset()",
        ),
        (
            TurnsWithoutSeed,
            ", step 0 of an episode: reset() takes no 'seed'; expected def reset(self, seed=None, options",
        ),
        (TurnsWithoutInfos, ", step 0 of an episode: infos: expected a dictionary by agent, found None"),
    ],
)
def test_a_reset_is_refused(cls, message):
    refused(cls(), f"nearly_v0{message}")


def test_what_a_game_in_turns_keeps_is_found_where_it_was_made_parallel():
    game = InTurns(rewards={"a": 1.0})
    game.metadata, game.render_mode = {"name": "nearly_v0", "is_parallelizable": True}, None
    both = pettingzoo.utils.conversions.aec_to_parallel(game)
    refused(both, "nearly_v0, step 1 of an episode: rewards: expected one of each of ['a', 'b'], found")


def test_an_error_of_the_environments_own_stays_as_it_is():
    class Failing(Together):
        def step(self, actions):
            return {}["its own"]

    with pytest.raises(KeyError, match="its own"):
        play(adapt(Failing()))
