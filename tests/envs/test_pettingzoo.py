"""PettingZoo's environments behind agentkit's interface: together, in turns, masks, ends, and PettingZoo's tests."""

import copy
import warnings
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

pettingzoo = pytest.importorskip("pettingzoo")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # It imports its own environments in the way that it warns of.
    from pettingzoo.test import api_test, parallel_api_test

from agentkit import envs, specs  # noqa: E402
from agentkit.envs.multi_agent.base import TurnEnvironment, one_reward_spec  # noqa: E402
from agentkit.envs.multi_agent.pettingzoo import ParallelEnvironment, TurnsEnvironment, make  # noqa: E402
from agentkit.envs.multi_agent.pettingzoo_export import PettingZooExport  # noqa: E402
from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment  # noqa: E402
from agentkit.errors import ConfigError, MissingExtraError, SpecError, UnknownNameError  # noqa: E402
from agentkit.specs import ACTION_MASK  # noqa: E402
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract, assert_same_timesteps, rollout  # noqa: E402


class OfPettingZoo(MultiAgentEnvironmentContract):
    name: str
    settings: ClassVar[dict] = {}

    def make_environment(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of Box2D, while it is imported: as an error one crashes Python.
            try:
                return envs.make_multi_agent(f"pettingzoo:{self.name}", seed=3, **self.settings)
            except MissingExtraError as error:
                pytest.skip(str(error))


class TestTicTacToe(OfPettingZoo):
    name = "classic/tictactoe_v3"


class TestRockPaperScissors(OfPettingZoo):
    name, num_steps = "classic/rps_v2", 60
    settings = {"max_cycles": 15}  # noqa: RUF012


class TestSpread(OfPettingZoo):
    name = "mpe/simple_spread_v3"
    settings = {"continuous_actions": True}  # noqa: RUF012


@pytest.mark.full
class TestConnectFour(OfPettingZoo):
    name = "classic/connect_four_v3"


@pytest.mark.full
class TestSpreadInTurns(OfPettingZoo):
    name, num_steps = "mpe/simple_spread_v3", 250
    settings = {"turns": True}  # noqa: RUF012


@pytest.mark.full
class TestSpeakerListener(OfPettingZoo):
    name = "mpe/simple_speaker_listener_v4"


@pytest.mark.full
class TestPursuit(OfPettingZoo):
    name, num_steps = "sisl/pursuit_v5", 60
    settings = {"max_cycles": 20}  # noqa: RUF012


@pytest.mark.full
class TestMultiwalker(OfPettingZoo):
    name, can_resume = "sisl/multiwalker_v9", True
    settings = {"max_cycles": 60}  # noqa: RUF012


SPACE, CHOICE = gymnasium.spaces.Box(0, 100, (), np.float32), gymnasium.spaces.Discrete(3)


class Parallel(pettingzoo.ParallelEnv):
    """Gives what a list says: (live agents, observations, rewards, terminated, truncated, infos)."""

    metadata = {"name": "scripted"}  # noqa: RUF012
    possible_agents = ("a", "b", 3)

    def __init__(self, first, *steps):
        self._first, self._steps = first, steps

    def reset(self, seed=None, options=None):
        self.agents, observations, infos = self._first
        self._left = list(self._steps)
        return {i: np.float32(x) for i, x in observations.items()}, infos

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.agents, observations, *others = self._left.pop(0)
        return ({i: None if x is None else np.float32(x) for i, x in observations.items()}, *others)

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return CHOICE


def given(environment):
    """The time steps as plain numbers: (step type, reward, discount, observation) by id."""

    def plain(x):
        return None if x is None else x if isinstance(x, dict) else float(x)

    *_, newest = rollout(environment, 1)
    found = [newest]
    while not all(t.last() for t in newest.values()):
        newest = environment.step({i: np.int32(0) for i, t in newest.items() if not t.last()})
        found.append(newest)
    return [{i: tuple(plain(x) for x in t) for i, t in each.items()} for each in found]


def test_agents_that_leave_join_and_end_at_once_in_parallel():
    environment = ParallelEnvironment(
        Parallel(
            (["a"], {"a": 1}, {}),
            # "b" joins with a reward, 3 joins and ends at once; "a" is cut off.
            (["b"], {"a": 2, "b": 3, 3: 4}, {"a": 1.5, "b": 0.5, 3: 9}, {"a": False, 3: True}, {"a": True}, {}),
            # Some environments tell for ever that "a" has ended.
            (["b"], {"b": 5}, {"b": 2.0, "a": None}, {"b": False}, {"a": True, "b": False}, {}),
            ([], {}, {"b": 1.0}, {"b": True}, {"b": True}, {}),
        )
    )
    assert given(environment) == [
        {"a": (0, None, None, 1)},
        {"a": (2, 1.5, 1, 2), "b": (0, None, None, 3), "3": (2, 9, 0, 4)},
        {"b": (1, 2.5, 1, 5)},
        {"b": (2, 1, 0, None)},
    ]


A_GOES_ON = (["a"], {"a": 0}, {"a": 0}, {"a": False}, {"a": False}, {})
B_ENDS = (["a"], {"a": 0, "b": 1}, {"a": 0, "b": 1.0}, {"a": False, "b": True}, {"a": False, "b": False}, {})


def test_an_agent_that_comes_back_and_ends_at_once_is_paid_for_each_visit():
    b_visits = (["a"], {"a": 0, "b": 2}, {"a": 0, "b": 9.0}, {"a": False, "b": True}, {"a": False}, {})
    b_visits_again = (["a"], {"a": 0, "b": 3}, {"a": 0, "b": 7.0}, {"a": False}, {"a": False, "b": True}, {})
    ends = ([], {"a": 0}, {"a": 0}, {"a": True}, {"a": False}, {})
    script = (B_ENDS, A_GOES_ON, b_visits, A_GOES_ON, b_visits_again, ends)
    found = given(ParallelEnvironment(Parallel((["a", "b"], {"a": 0, "b": 0}, {}), *script)))
    assert [each.get("b") for each in found] == [
        (0, None, None, 0), (2, 1, 0, 1), None, (2, 9, 0, 2), None, (2, 7, 1, 3), None
    ]  # fmt: skip


@pytest.mark.parametrize("ends", [{"a": False}, {"a": False, "b": True}], ids=["away", "told_again"])
def test_a_reward_of_an_agent_that_is_away_is_refused(ends):
    paid = (["a"], {"a": 0}, {"a": 0, "b": 9.0}, ends, {"a": False}, {})
    environment = ParallelEnvironment(Parallel((["a", "b"], {"a": 0, "b": 0}, {}), B_ENDS, paid))
    with pytest.raises(SpecError, match="agent 'b': rewards: expected none of an agent that is away, found 9"):
        given(environment)


def test_an_agent_that_vanishes_is_refused():
    none, ends = {"a": 0, "b": 0}, {"a": False, "b": False}
    environment = ParallelEnvironment(Parallel((["a", "b"], none, {}), (["a"], {"a": 1}, none, ends, ends, {})))
    with pytest.raises(SpecError, match="agent 'b': left `agents` without a termination or a truncation"):
        given(environment)


def test_masks_in_infos_become_part_of_the_observation():
    masks = [{"a": {ACTION_MASK: np.array(m, np.int8)}} for m in ([1, 0, 1], [1, 1, 0])]
    environment = ParallelEnvironment(
        Parallel(
            (["a"], {"a": 1}, masks[0]),
            (["a"], {"a": 2}, {"a": 0}, {"a": False}, {"a": False}, masks[1]),
            ([], {"a": 3}, {"a": 0}, {"a": True}, {"a": False}, {}),
        )
    )
    found = [each["a"][3] for each in given(environment)]
    assert [(o["observation"].item(), o[ACTION_MASK].tolist()) for o in found] == [
        (1, [1, 0, 1]), (2, [1, 1, 0]), (3, [1, 1, 1])
    ]  # fmt: skip
    zero, on = {"a": 0}, {"a": False}
    without = ParallelEnvironment(Parallel((["a"], zero, masks[0]), (["a"], zero, zero, on, on, {})))
    with pytest.raises(SpecError, match="agent 'a': infos/action_mask: expected int8"):
        given(without)


def test_a_mask_in_infos_is_of_the_agent_that_has_it():
    class Mixed(Parallel):
        def action_space(self, agent):
            return gymnasium.spaces.Box(-1, 1, (), np.float32) if agent == 3 else CHOICE

    live, zero, on = ["a", "b", 3], {"a": 0, "b": 0, 3: 0}, dict.fromkeys(["a", "b", 3], False)
    mask = {ACTION_MASK: np.array([1, 0, 1], np.int8)}
    infos = {"a": mask, "b": {ACTION_MASK: None}, 3: mask}
    later = (live, zero, zero, on, on, {"a": mask, "b": mask})
    environment = ParallelEnvironment(Mixed((live, zero, infos), (live, zero, zero, on, on, infos), later))
    acted = {"a": np.int32(0), "b": np.int32(0), "3": np.float32(0)}
    for found in (environment.reset(), environment.step(acted)):
        assert found["a"].observation[ACTION_MASK].tolist() == [1, 0, 1]
        for agent_id, timestep in found.items():
            specs.validate(timestep.observation, environment.agent_specs()[agent_id].observations, agent_id)
        assert [isinstance(t.observation, dict) for t in found.values()] == [True, False, False]
    with pytest.raises(SpecError, match="step 2 of an episode, agent 'b': infos/action_mask: expected none, since"):
        environment.step(acted)


def test_who_is_not_to_act_at_the_reset_may_have_a_mask_later():
    class OfWhoActs(Turns):
        def reset(self, seed=None, options=None):
            super().reset()
            self.infos["a"] = {ACTION_MASK: np.array([1, 0, 1], np.int8)}

        def step(self, action):
            super().step(action)
            if self._time == 1:
                self.infos["b"] = {ACTION_MASK: np.array([1, 1, 0], np.int8)}
            if self._time == 2:
                self.infos["b"] = {}

    found = given(TurnsEnvironment(OfWhoActs()))
    masks = [[t[3][ACTION_MASK].tolist() for t in each.values()] for each in found[:4]]
    assert masks == [[[1, 0, 1]], [[1, 1, 0]], [[1, 0, 1]], [[1, 1, 1]]]


class Turns(pettingzoo.AECEnv):
    """ "a" and "b" in turns; b gets 5 at once and 1 for each step, a 2 for each own one; after four steps b is cut off,
    and "a" has terminated."""

    metadata = {"name": "turns"}  # noqa: RUF012
    possible_agents = ("a", "b")

    def reset(self, seed=None, options=None):
        self.agents, self._time, self.agent_selection = ["a", "b"], 0, "a"
        self.rewards, self._cumulative_rewards = {"a": 0, "b": 5}, {"a": 0, "b": 5}
        self.terminations, self.truncations = dict.fromkeys("ab", False), dict.fromkeys("ab", False)
        self.infos = {"a": {}, "b": {}}

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            return self._was_dead_step(action)
        self._cumulative_rewards[self.agent_selection] = 0
        self._time += 1
        self.rewards = {"a": 2 * (self.agent_selection == "a"), "b": 1}
        self._accumulate_rewards()
        self.agent_selection = "ba"["ab".index(self.agent_selection)]
        if self._time == 4:
            self.terminations["a"] = self.truncations["b"] = True

    def observe(self, agent):
        return np.float32(self._time)

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return CHOICE


def test_agents_in_turns_get_what_fell_between_their_turns_and_both_ends_are_kept_apart():
    assert given(TurnsEnvironment(Turns())) == [
        {"a": (0, None, None, 0)},
        {"b": (0, None, None, 1)},
        {"a": (1, 2, 1, 2)},
        {"b": (1, 5 + 1 + 2, 1, 3)},  # What it had before its first turn, too.
        {"a": (2, 2, 0, 4), "b": (2, 1, 1, 4)},
    ]


def test_turns_that_end_without_a_word_are_refused():
    class Silent(Turns):
        def step(self, action):
            super().step(action)
            if self._time == 3:
                self.agents = []

    with pytest.raises(SpecError, match="ended without a turn for a, b to hear of its end"):
        given(TurnsEnvironment(Silent()))


def test_an_agent_that_possible_agents_does_not_have_is_refused():
    environment = ParallelEnvironment(Parallel((["a"], {"a": 1}, {}), (["a", "c"], {"a": 1}, {"a": 0}, {}, {}, {})))
    with pytest.raises(SpecError, match="agent 'c' is none of its possible_agents"):
        given(environment)


def test_what_is_handed_in_is_adapted_and_copied():
    instance = Turns()
    made = envs.make_multi_agent(instance)
    assert isinstance(made, ResumableMultiAgentEnvironment)
    assert isinstance(envs.make_multi_agent(Turns, raw=True), TurnsEnvironment)
    assert made.pettingzoo_environment is not instance
    assert given(copy.deepcopy(made)) == given(made)


@pytest.mark.parametrize(
    "name, settings, error, message",
    [
        ("classic/tictactoe_v2", {}, UnknownNameError, "Did you mean 'classic/tictactoe-v3'"),
        ("clasic/tictactoe_v3", {}, UnknownNameError, "Expected FAMILY/NAME"),
        ("classic/tictactoe_v3", {"turns": False}, ConfigError, "can only act in turns"),
        ("classic/tictactoe_v3", {"size": 4}, ConfigError, "unexpected keyword argument 'size'"),
    ],
)
def test_names_and_settings_that_are_none_are_refused(name, settings, error, message):
    with pytest.raises(error, match=message):
        make(name, **settings)


def test_agents_act_together_where_they_can_unless_turns_are_asked_for():
    assert isinstance(make("mpe/simple_spread_v3"), ParallelEnvironment)
    assert isinstance(make("mpe/simple_spread_v3", turns=True), TurnsEnvironment)


def test_what_is_missing_is_named():
    pettingzoo.register("aec", "classic/lacking-v0", entry_point="a_package_that_is_not_there:env")
    try:
        with pytest.raises(
            MissingExtraError, match=r"'a_package_that_is_not_there', .* pip install 'pettingzoo\[classic\]'"
        ):
            make("classic/lacking_v0")
    finally:
        del pettingzoo.aec_registry["classic/lacking-v0"]


def test_the_state_is_the_environments():
    environment = envs.make_multi_agent("pettingzoo:mpe/simple_spread_v3")
    environment.reset()
    assert environment.state_spec().shape == (54,)
    np.testing.assert_array_equal(environment.state(), environment.pettingzoo_environment.state())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["classic/tictactoe_v3", pytest.param("classic/connect_four_v3", marks=pytest.mark.full)]
)
def test_pettingzoos_own_test_passes_after_agentkit_has_played(name):
    environment = make(name)
    for _ in rollout(environment, 30):
        pass
    api_test(environment.pettingzoo_environment, num_cycles=100)


@pytest.mark.filterwarnings("ignore")
def test_pettingzoos_own_parallel_test_passes_after_agentkit_has_played():
    environment = make("mpe/simple_spread_v3")
    for _ in rollout(environment, 30):
        pass
    parallel_api_test(environment.pettingzoo_environment, num_cycles=60)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "agentkit:tic_tac_toe",
        "agentkit:matrix_game",
        "pettingzoo:classic/tictactoe_v3",
        pytest.param("pettingzoo:mpe/simple_spread_v3", marks=pytest.mark.full),
        pytest.param("pettingzoo:sisl/pursuit_v5", marks=pytest.mark.full),
    ],
)
def test_pettingzoos_own_test_passes_on_what_agentkit_gives_back(name):
    environment = PettingZooExport(envs.make_multi_agent(name))
    api_test(environment, num_cycles=60)


class Answers(TurnEnvironment):
    """Two agents see who of them has said yes, and whether both have."""

    def __init__(self, seed=0):
        said = {"said": specs.Array((2,), bool, "said"), "together": specs.Array((), bool, "together")}
        spec = one_reward_spec(said, specs.BoundedArray((1,), bool, False, True, "answer"))
        super().__init__({"a": spec, "b": spec}, seed)

    def _start(self):
        self._said, self._played = np.zeros(2, bool), 0

    def _advance(self, actions):
        self._said, self._played = np.array([bool(actions[i][0]) for i in "ab"]), self._played + 1
        for agent_id in "ab" if self._played == 5 else "":
            self._end(agent_id, self._observe(agent_id))

    def _acting(self):
        return "ab" if self._played < 5 else ()

    def _observe(self, agent_id):
        return {"said": self._said.copy(), "together": np.array(self._said.all())}


@pytest.mark.filterwarnings("ignore")
def test_booleans_go_to_pettingzoo_and_back():
    api_test(PettingZooExport(Answers()), num_cycles=30)
    once = TurnsEnvironment(PettingZooExport(Answers()))
    twice = TurnsEnvironment(PettingZooExport(TurnsEnvironment(PettingZooExport(Answers()))))
    for found, expected in zip(rollout(twice, 30), rollout(once, 30), strict=True):
        assert_same_timesteps(found, expected)
        for timestep in found.values():
            specs.validate(timestep.observation, Answers().agent_specs()["a"].observations, "observation")


def test_an_environment_that_went_to_pettingzoo_and_back_is_the_same():
    """Rewards between turns, both ends, ids that come late and observations that lack go through both adapters."""
    around = TurnsEnvironment(PettingZooExport(TurnsEnvironment(Turns())))
    assert given(around) == given(TurnsEnvironment(Turns()))


def test_an_agent_that_comes_back_cannot_be_given_to_pettingzoo():
    environment = TurnsEnvironment(PettingZooExport(envs.make_multi_agent("agentkit:come_and_go")))
    with pytest.raises(ConfigError, match="came back in the same episode"):
        for _ in rollout(environment, 400):
            pass
