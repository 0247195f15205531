"""A team as one agent: sums by hand, agents that end before others, and what no team can be made of."""

import itertools
from typing import Any

import dm_env
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.multi_agent_host import on_host
from agentkit.envs.jax.team import JaxTeam
from agentkit.envs.multi_agent.team import TeamEnvironment
from agentkit.errors import SpecError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract
from tests.agents.teams import make_hints
from tests.experiment.on_device_runs import Counting

STEP_TYPES = {"first": dm_env.StepType.FIRST, "mid": dm_env.StepType.MID, "last": dm_env.StepType.LAST}


class Script(MultiAgentEnvironment):
    """Gives a list of steps: by agent id (step type, reward, discount), and what it sees is the number of the step."""

    def __init__(self, *steps: dict[str, tuple[str, float | None, float | None]], state: bool = False):
        self._steps = steps
        self._state = state
        self.actions: list[dict[str, int]] = []

    def reset(self) -> Any:
        self._now = 0
        return self._timesteps()

    def step(self, action: Any) -> Any:
        self.actions.append({agent: int(choice) for agent, choice in action.items()})
        self._now += 1
        return self._timesteps()

    def _timesteps(self) -> Any:
        return {
            agent: dm_env.TimeStep(STEP_TYPES[kind], reward, discount, self._observe(reward))
            for agent, (kind, reward, discount) in self._steps[self._now].items()
        }

    def _observe(self, reward: float | None) -> Any:
        return None if reward == NO_OBSERVATION else np.float32([self._now + 1])

    def agent_specs(self) -> Any:
        scalar = specs.Array((), np.float32)
        spec = specs.EnvironmentSpec(specs.Array((1,), np.float32), specs.DiscreteArray(2), scalar, scalar)
        return dict.fromkeys(self._steps[0], spec)

    def state_spec(self) -> Any:
        return specs.Array((2,), np.float32, "state") if self._state else None

    def state(self) -> Any:
        return np.float32([self._now, -1])


NO_OBSERVATION = 7.0  # A reward that comes with none.
FIRST, MID = ("first", None, None), ("mid", 1.0, 1.0)
START = {"b": FIRST, "a": FIRST}


def play(script: Script) -> list[dm_env.TimeStep]:
    environment = TeamEnvironment(script)
    timesteps = [environment.reset()]
    while not timesteps[-1].last():
        timesteps.append(environment.step({"a": np.int32(0), "b": np.int32(1)}))
    for timestep in timesteps:
        specs.validate(timestep.observation, environment.observation_spec())
    return timesteps


class TestTeam(EnvironmentContract):
    num_steps = 60

    def make_environment(self) -> Any:
        return envs.make(make_hints, seed=3)


class TestTeamOfWhatIsReady(EnvironmentContract):
    """Around an environment that could be resumed by itself."""

    num_steps = 60

    def make_environment(self) -> Any:
        return envs.make(lambda seed: TeamEnvironment(envs.make_multi_agent("agentkit:two_step_game", seed)), seed=3)


def test_rewards_are_summed_and_an_agent_that_terminates_is_seen_as_zeros_and_acts_no_more() -> None:
    script = Script(
        START,
        {"a": MID, "b": ("mid", 0.25, 1.0)},
        {"a": ("last", 5.0, 0.0), "b": ("mid", -2.0, 1.0)},
        {"b": ("mid", 0.5, 1.0)},
        {"b": ("last", 3.0, 1.0)},
    )
    timesteps = play(script)
    assert [t.reward for t in timesteps] == [None, 1.25, 3.0, 0.5, 3.0]
    assert [t.discount for t in timesteps] == [None, 1.0, 1.0, 1.0, 1.0]
    assert [t.observation["active"].tolist() for t in timesteps] == [[True, True]] * 2 + [[False, True]] * 3
    assert [float(t.observation["agents"]["a"][0]) for t in timesteps] == [1, 2, 3, 0, 0]
    assert [float(t.observation["agents"]["b"][0]) for t in timesteps] == [1, 2, 3, 4, 5]
    assert script.actions == [{"a": 0, "b": 1}] * 2 + [{"b": 1}] * 2


def test_an_agent_may_end_without_an_observation() -> None:
    last = play(Script(START, {"a": ("last", NO_OBSERVATION, 0.0), "b": ("last", 1.0, 0.0)}))[-1]
    assert last.reward == 8.0 and [float(x[0]) for x in last.observation["agents"].values()] == [0, 2]


@pytest.mark.parametrize(
    ("discounts", "expected", "active"),
    [
        ((0, 0), 0, [False, False]),
        ((1, 1), 1, [True, True]),
        ((0, 1), 1, [False, True]),
        ((0.5, 0), 0.5, [True, False]),
    ],
)
def test_a_team_terminates_where_all_do_and_bootstraps_from_those_that_are_truncated(
    discounts: Any, expected: float, active: Any
) -> None:
    last = play(Script(START, {"a": ("last", 1.0, discounts[0]), "b": ("last", 1.0, discounts[1])}))[-1]
    assert last.discount == expected and last.observation["active"].tolist() == active


def test_a_state_is_seen_where_there_is_one_and_each_episode_begins_with_all() -> None:
    script = Script(START, {"a": ("last", 1.0, 0.0), "b": MID}, {"b": ("last", 1.0, 0.0)}, state=True)
    assert [t.observation["state"].tolist() for t in play(script)] == [[0, -1], [1, -1], [2, -1]]
    assert "state" not in play(Script(START, dict.fromkeys("ab", ("last", 1.0, 0.0))))[0].observation
    environment = TeamEnvironment(script)
    for _ in range(2):
        steps = [environment.step({"a": 0, "b": 0}) for _ in range(3)]
        assert [t.step_type for t in steps] == [0, 1, 2]
        assert steps[0].observation["active"].all() and not steps[2].observation["active"].any()


WRONG = {
    "turns": ((START, {"a": MID}), "expected a time step of a, b after all have acted, found a"),
    "late": (
        ({"a": FIRST, "b": FIRST}, {"a": MID, "b": MID, "c": FIRST}),
        "expected a time step of a, b .* found a, b, c",
    ),
    "gone": ((START, {"a": MID, "b": ("last", 1.0, 0.0)}, {}), "expected a time step of a after .*, found none"),
    "back": ((START, {"a": MID, "b": FIRST}), "may not begin within an episode; found FIRST of 'b'"),
    "no first": (({"a": FIRST, "b": MID},), "expected FIRST of 'b' at a reset, found .*MID"),
    "truncated alone": ((START, {"a": ("last", 1.0, 1.0), "b": MID}), "'a' was, with the discount 1.0, while others"),
    "discounts": ((START, {"a": ("mid", 1.0, 0.5), "b": MID}), r"one discount, found \[0.5, 1.0\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_team_is_refused_at_its_first_step_that_shows_it(name: str) -> None:
    steps, message = WRONG[name]
    with pytest.raises(SpecError, match=message):
        play(Script(*steps))


def test_an_environment_of_one_agent_is_refused() -> None:
    with pytest.raises(SpecError, match="of several agents, found ResumableEnvironment"):
        TeamEnvironment(envs.make("agentkit:catch"))  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="Unknown environment of several agents 'agentkit:catch'"):
        envs.make("team:agentkit:catch")


def test_the_two_step_game_pays_by_its_matrices() -> None:
    environment, paid = envs.make("team:agentkit:two_step_game"), {}
    for first, second in itertools.product(itertools.product((0, 1), repeat=2), repeat=2):
        environment.reset()
        places = []
        for one, two in (first, second):
            timestep = environment.step({"agent_1": np.int32(one), "agent_2": np.int32(two)})
            places.append(timestep.observation["state"].tolist())
        assert timestep.last() and timestep.discount == 0 and places == [[0, 1 - first[0], first[0]], [0, 0, 0]]
        paid[first, second] = float(timestep.reward)
    assert {paid[pair] for pair in paid if pair[0][0] == 0} == {7.0}
    assert [paid[(1, 0), second] for second in itertools.product((0, 1), repeat=2)] == [0, 1, 1, 8]
    assert np.mean(list(paid.values())) == 4.75


def _play(environment: dm_env.Environment) -> list[dm_env.TimeStep]:
    found = []
    for one, other in itertools.product((0, 1), repeat=2):
        found.append(environment.reset())
        for _ in range(2):
            found.append(environment.step({"agent_1": np.int32(one), "agent_2": np.int32(other)}))
    return found


def test_a_team_in_jax_is_that_of_its_twin():
    ours, twin = envs.make("team:jax:two_step_game"), envs.make("team:agentkit:two_step_game")
    assert ours.observation_spec() == twin.observation_spec() and ours.action_spec() == twin.action_spec()
    for one, other in zip(_play(ours), _play(twin), strict=True):
        tree.map_structure(np.testing.assert_array_equal, one, other)
    with pytest.raises(ValueError, match="Expected an action in"):
        ours.reset()
        ours.step({"agent_1": 2, "agent_2": 0})


def test_a_team_in_jax_of_which_one_terminates_and_one_is_cut_off():
    """As above: the discount is 1, and nothing is bootstrapped from who terminated."""
    environment = DmEnvironment(JaxTeam(Counting()))
    first, middle, last = environment.reset(), *(environment.step({"a": 0, "b": 1}) for _ in range(2))
    assert [each.step_type for each in (first, middle, last)] == list(dm_env.StepType)
    assert (middle.reward, last.reward, last.discount) == (11.0, 22.0, 1.0)
    np.testing.assert_array_equal([middle.observation["active"], last.observation["active"]], [[1, 1], [0, 1]])
    np.testing.assert_array_equal(last.observation["agents"]["b"], [1, 2])
    assert "state" not in last.observation


class Chosen(Counting):
    """Gives each agent half the number of its action as a discount."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(discount={agent_id: action[agent_id] / 2.0 for agent_id in "ab"})


def _step_of_both(ours: dm_env.Environment, twin: dm_env.Environment, choices: tuple[int, int]) -> bool:
    """Compares the team in JAX with that on the host, which may refuse the discounts; returns whether it does."""
    action = dict(zip("ab", map(np.int32, choices), strict=True))
    found = ours.step(action)
    try:
        expected = twin.step(action)
    except SpecError as error:
        assert "A team has one discount" in str(error) and found.discount == max(choices) / 2
        return True
    tree.map_structure(np.testing.assert_array_equal, found, expected)
    return False


def test_discounts_of_a_team_in_jax_are_the_hosts_where_that_takes_them() -> None:
    ours, twin = DmEnvironment(JaxTeam(Chosen())), TeamEnvironment(on_host(Chosen()))
    pairs, refused = list(itertools.product(range(3), repeat=2)), {"middle": set(), "end": set()}
    for pair in pairs:
        for when, before in (("middle", []), ("end", [(2, 2)])):
            ours.reset()
            twin.reset()
            assert not any(_step_of_both(ours, twin, each) for each in before)
            refused[when] |= {pair} if _step_of_both(ours, twin, pair) else set()
    assert refused["middle"] == {(one, other) for one, other in pairs if one != other}
    assert refused["end"] == {(1, 2), (2, 1)}, "who terminates beside one that is cut off is an end like any"
