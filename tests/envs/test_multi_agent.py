"""agentkit's own environments of several agents: the contract, and what each says of itself."""

import gymnasium
import numpy as np
import pytest
import tree

from agentkit import envs
from agentkit.envs.multi_agent.base import BetweenTurns, TurnEnvironment, one_reward_spec
from agentkit.envs.multi_agent.come_and_go import ComeAndGo
from agentkit.envs.multi_agent.matrix_game import MatrixGame
from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment
from agentkit.envs.multi_agent.tic_tac_toe import TicTacToe
from agentkit.envs.multi_agent.two_step_game import TwoStepGame
from agentkit.errors import CheckpointError, ConfigError, SpecError, UnknownNameError
from agentkit.specs import ACTION_MASK, Array, BoundedArray, DiscreteArray
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract, rollout


class TestMatrixGame(MultiAgentEnvironmentContract):
    def make_environment(self):
        return ResumableMultiAgentEnvironment(MatrixGame("climbing"), seed=3)


class TestTicTacToe(MultiAgentEnvironmentContract):
    def make_environment(self):
        return ResumableMultiAgentEnvironment(TicTacToe(), seed=3)


class TestTicTacToeFromRandomOpenings(MultiAgentEnvironmentContract):
    def make_environment(self):
        return ResumableMultiAgentEnvironment(TicTacToe(random_moves=4), seed=3)


class TestTwoStepGame(MultiAgentEnvironmentContract):
    def make_environment(self):
        return ResumableMultiAgentEnvironment(TwoStepGame(), seed=3)


class TestComeAndGo(MultiAgentEnvironmentContract):
    num_steps = 600

    def make_environment(self):
        return ResumableMultiAgentEnvironment(ComeAndGo(), seed=3)


class Deep(TicTacToe):
    """Shows its board, and the mask with it, one level further down."""

    def __init__(self):
        super().__init__()
        self._specs = {i: spec._replace(observations={"board": spec.observations}) for i, spec in self._specs.items()}

    def _observe(self, agent_id):
        return {"board": super()._observe(agent_id)}


class TestAMaskBelowTheTop(MultiAgentEnvironmentContract):
    def make_environment(self):
        return ResumableMultiAgentEnvironment(Deep(), seed=3)


def test_the_contract_finds_a_mask_below_the_top():
    class Bad(TestTicTacToe):
        def make_environment(self):
            return EmptiedBelow()

    with pytest.raises(AssertionError, match="a mask that allows nothing"):
        Bad().test_every_step_follows_from_the_last()


class EmptiedBelow(Deep):
    """Allows nothing."""

    def _observe(self, agent_id):
        board = super()._observe(agent_id)["board"]
        return {"board": {**board, ACTION_MASK: np.zeros_like(board[ACTION_MASK])}}


@pytest.mark.parametrize("rule", ["no LAST", "no FIRST", "a reward on FIRST", "a mask of nothing"])
def test_the_contract_refuses_an_environment_that_breaks_a_rule(rule):
    class Bad(TestTicTacToe):
        def make_environment(self):
            return Breaking(rule)

    with pytest.raises(AssertionError):
        Bad().test_every_step_follows_from_the_last()


class Breaking(TicTacToe):
    """Breaks a rule of the contract."""

    def __init__(self, rule):
        super().__init__()
        self._rule = rule

    def _hand_out(self):
        given = super()._hand_out()
        for agent_id, t in list(given.items()):
            if self._rule == "no LAST" and t.last() and agent_id == "first":
                del given[agent_id]
            if self._rule == "no FIRST" and t.first():
                given[agent_id] = t._replace(step_type=1, reward=0.0, discount=1.0)
            if self._rule == "a reward on FIRST" and t.first():
                given[agent_id] = t._replace(reward=0.0)
            if self._rule == "a mask of nothing":
                t.observation[ACTION_MASK][:] = t.first()
        return given


def test_the_contract_refuses_a_choice_out_of_its_range():
    class Bad(MultiAgentEnvironmentContract):
        def make_environment(self):
            return Choosing("climbing")

    with pytest.raises(SpecError, match=r"expected int32.* found int32 77"):
        Bad().test_every_step_follows_from_the_last()


class Choosing(MatrixGame):
    """Observes one choice of three, and says that it is the 78th."""

    def __init__(self, game):
        super().__init__(game)
        seen = DiscreteArray(3, np.int32)
        self._specs = {agent_id: spec._replace(observations=seen) for agent_id, spec in self._specs.items()}

    def _observe(self, agent_id):
        return np.array(77, np.int32)


class TestOneAgent(MultiAgentEnvironmentContract):
    def make_environment(self):
        return envs.make_multi_agent(envs.make("agentkit:catch", seed=3))


class TestOneAgentOfGymnasium(MultiAgentEnvironmentContract):
    save_points = (8,)

    def make_environment(self):
        return envs.make_multi_agent(gymnasium.make("CartPole-v1"), seed=3)


def test_an_environment_of_gymnasium_is_that_of_one_agent_called_agent():
    """Its steps are those that it gives by itself, from the same seed."""
    ours = envs.make_multi_agent(lambda: gymnasium.make("CartPole-v1"), seed=3, raw=True)
    twin = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(ours.reset()["agent"].observation, twin.reset(seed=3)[0])
    terminated = False
    while not terminated:
        (agent_id, timestep), (seen, reward, terminated, *_) = *ours.step({"agent": np.int64(1)}).items(), twin.step(1)
        np.testing.assert_array_equal(timestep.observation, seen)
        assert (agent_id, timestep.reward, timestep.discount) == ("agent", reward, 0.0 if terminated else 1.0)
    assert timestep.last()


def test_what_agents_get_has_single_precision_and_actions_in_their_bounds():
    class Wide(Slow):
        def __init__(self, seed=0):
            super().__init__()
            self._specs = dict.fromkeys(
                self._specs, one_reward_spec(Array((1,), np.float64), BoundedArray((1,), np.float32, 2.0, 6.0))
            )

        def _advance(self, actions):
            self.taken = {agent_id: action.item() for agent_id, action in actions.items()}
            super()._advance({})

        def _observe(self, agent_id):
            return super()._observe(agent_id).astype(np.float64)

    environment = envs.make_multi_agent(Wide)
    spec = environment.agent_specs()["late"]
    assert (spec.actions.minimum, spec.actions.maximum, spec.observations.dtype) == (-1, 1, np.float32)
    given = list(rollout(environment, 6))
    assert given[1]["always"].observation.dtype == np.float32 and type(given[1]["always"].reward) is np.float32
    assert given[-1]["always"].observation is None and given[3]["late"].reward == 7.0
    environment.reset()
    environment.step({"always": np.array([0.5], np.float32)})
    assert environment.taken == {"always": 5.0}


@pytest.mark.parametrize(
    "environment, settings, error, message",
    [
        ("agentkit:tic_tac_to", {}, UnknownNameError, "Did you mean 'agentkit:tic_tac_toe'"),
        ("agentkit:catch", {}, UnknownNameError, "environment of several agents 'agentkit:catch'"),
        ("agentkit:matrix_game", {"round": 3}, UnknownNameError, "Did you mean 'rounds'"),
        (TicTacToe(), {"size": 3}, ConfigError, "an instance takes none"),
        (dict, {}, SpecError, "Expected an environment of several agents"),
    ],
)
def test_what_is_no_environment_of_several_agents_is_refused(environment, settings, error, message):
    with pytest.raises(error, match=message):
        envs.make_multi_agent(environment, **settings)


class Seeded(TicTacToe):
    """Takes whatever else there is."""

    def __init__(self, seed=0, **options):
        super().__init__(seed)
        self.seed, self.options = seed, options


def test_what_is_handed_in_is_given_the_seed():
    given = [Seeded, lambda s: Seeded(seed=s), lambda seed: Seeded(seed), lambda: Seeded()]
    assert [envs.make_multi_agent(each, 7, raw=True).seed for each in given] == [7, 7, 7, 0]
    assert envs.make_multi_agent(Seeded, 7, raw=True, rows=4).options == {"rows": 4}
    with pytest.raises(UnknownNameError, match="argument of the environment TicTacToe 'random_move'"):
        envs.make_multi_agent(TicTacToe, random_move=2)
    with pytest.raises(ConfigError, match=r"that cannot be copied .* Hand in the class"):
        envs.make_multi_agent(np)


class LateReward(MatrixGame):
    def _advance(self, actions):
        super()._advance(actions)
        if self._ended:
            self._reward("row", 7.0)


def test_a_reward_after_an_agents_end_is_refused():
    with pytest.raises(
        SpecError, match=r"'row' has ended .* its reward of 7\.0 would be lost: give its last one before"
    ):
        list(rollout(LateReward("climbing"), 20))


def test_an_environment_of_several_agents_is_refused_where_one_acts():
    with pytest.raises(
        ConfigError, match=r"agentkit:tic_tac_toe has several agents.*--policies shared.*team:agentkit:tic_tac_toe"
    ):
        envs.make("agentkit:tic_tac_toe")


def play(environment, moves):
    timesteps = environment.reset()
    for move in moves:
        (player,) = [agent_id for agent_id, timestep in timesteps.items() if not timestep.last()]
        timesteps = environment.step({player: np.int32(move)})
    return timesteps


def test_the_loser_hears_of_the_last_move_of_tic_tac_toe_although_it_is_not_its_turn():
    timesteps = play(TicTacToe(), [0, 3, 1, 4, 2])
    assert {i: (t.last(), t.reward, t.discount) for i, t in timesteps.items()} == {
        "first": (True, 1.0, 0.0),
        "second": (True, -1.0, 0.0),
    }
    np.testing.assert_array_equal(np.flatnonzero(timesteps["second"].observation["observation"][:, 0]), [3, 4])


def test_a_full_board_of_tic_tac_toe_is_a_draw():
    timesteps = play(TicTacToe(), [0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert [t.reward for t in timesteps.values()] == [0.0, 0.0]
    assert not timesteps["first"].observation[ACTION_MASK].any()


def test_tic_tac_toe_refuses_a_square_that_is_taken():
    with pytest.raises(SpecError, match="'second' took square 4, which is not free"):
        play(TicTacToe(), [4, 4])


def test_the_first_moves_of_tic_tac_toe_may_be_chances():
    environment = TicTacToe(seed=1, random_moves=4)
    taken = []
    for _ in range(500):
        ((player, timestep),) = environment.reset().items()
        own, other = timestep.observation["observation"].sum(axis=0).astype(int)
        assert (player, own) == (("first", other), ("second", other - 1))[(own + other) % 2]
        taken.append(own + other)
    counts = np.bincount(taken)
    assert len(counts) == 5 and (counts > 60).all(), counts
    for number in (-1, 5, 0.5):
        with pytest.raises(ConfigError, match="random_moves: expected a whole number from 0 to 4"):
            TicTacToe(random_moves=number)


def test_a_matrix_game_pays_by_its_table_and_shows_the_round_before():
    environment = MatrixGame("prisoners_dilemma", rounds=2)
    environment.reset()
    timesteps = environment.step({"row": np.int32(1), "column": np.int32(0)})
    assert {i: t.reward for i, t in timesteps.items()} == {"row": 0.0, "column": -3.0}
    np.testing.assert_array_equal(timesteps["row"].observation, [0, 1, 1, 0])
    np.testing.assert_array_equal(environment.state(), [0.5])
    assert all(t.last() for t in environment.step({"row": np.int32(0), "column": np.int32(0)}).values())


@pytest.mark.parametrize("actions", [{"row": 0}, {"row": 0, "column": 0, "third": 0}, {}])
def test_actions_of_others_than_those_that_act_are_refused(actions):
    environment = MatrixGame()
    environment.reset()
    with pytest.raises(SpecError, match="Expected the actions of row, column"):
        environment.step(actions)


def test_a_step_after_the_end_says_to_reset():
    environment = MatrixGame(rounds=1)
    environment.reset()
    environment.step({"row": 0, "column": 0})
    with pytest.raises(SpecError, match="the episode is over: call reset"):
        environment.step({"row": 0, "column": 0})


def test_a_matrix_game_of_tables_of_two_shapes_is_refused():
    with pytest.raises(ConfigError, match=r"found \(1, 2\) and \(2, 1\)"):
        MatrixGame(([[1, 2]], [[1], [2]]))


def test_what_is_between_two_turns_is_one_step_without_gamma():
    between = BetweenTurns()
    between.add(1.0, discount=0.5)
    between.add(2.0, discount=0.5)
    between.add(4.0)
    assert between.take() == (1.0 + 0.5 * 2.0 + 0.25 * 4.0, 0.25)


class Slow(TurnEnvironment):
    """ "late" gets 5 before its first turn; it acts at each second step."""

    def __init__(self):
        spec = one_reward_spec(Array((1,), np.float32), DiscreteArray(2))
        super().__init__({"always": spec, "late": spec})

    def _start(self):
        self._time = 0

    def _advance(self, actions):
        self._time += 1
        self._reward("always", 1.0)
        self._reward("late", 5.0 if self._time == 1 else 1.0)
        if self._time == 5:
            self._end("always", None)
            self._end("late", self._observe("late"), terminated=False)

    def _acting(self):
        return {0: ["always"], 5: []}.get(self._time, ["always", "late"] if self._time % 2 else ["always"])

    def _observe(self, agent_id):
        return np.array([self._time], np.float32)


def test_rewards_before_the_first_turn_and_between_two_come_with_the_next_step():
    environment = Slow()
    given = list(rollout(environment, 6))
    late = [(t["late"].reward, t["late"].discount) for t in given if "late" in t]
    assert late == [(None, None), (5.0 + 1.0 + 1.0, 1.0), (2.0, 1.0)]
    assert (given[-1]["always"].observation, given[-1]["always"].discount) == (None, 0.0)


def test_an_agent_that_ends_and_acts_at_one_step_is_refused():
    class Both(Slow):
        def _advance(self, actions):
            self._time += 1
            self._end("always", self._observe("always"))

    environment = Both()
    environment.reset()
    with pytest.raises(SpecError, match="'always' has just ended and is to act"):
        environment.step({"always": np.int32(0)})


class Lives(TurnEnvironment):
    """ "a" acts at each of four steps, and "b" at the first, after which it ends; `told` is done at later ones."""

    def __init__(self, told):
        spec = one_reward_spec(Array((1,), np.float32), DiscreteArray(2))
        super().__init__({"a": spec, "b": spec})
        self._told = told

    def _start(self):
        self._time, self._turns = 0, ["a", "b"]

    def _advance(self, actions):
        self._time += 1
        self._turns = ["a"] if self._time < 4 else []
        if self._time == 1:
            self._reward("b", 1.0)
            self._end("b", None)
        self._told.get(self._time, lambda environment: None)(self)
        if self._time == 4:
            self._end("a", None)

    def _acting(self):
        return self._turns

    def _observe(self, agent_id):
        return np.array([self._time], np.float32)


def acts(environment):
    environment._turns = ["a", "b"]


@pytest.mark.parametrize(
    "told, message",
    [
        (
            {2: lambda e: e._reward("b", 100.0)},
            r"'b' has ended in this episode, and its reward of 100\.0 would be lost",
        ),
        ({2: lambda e: e._end("b", None)}, "'b' has ended in this episode already"),
        ({1: lambda e: e._come_back("b")}, "'b' has just ended and is to come back: it can come back at a later step"),
        ({2: acts, 3: lambda e: e._reward("b", 3.0)}, r"is over, and 'b' has not got its reward of 3\.0"),
        ({2: lambda e: (e._come_back("b"), e._reward("b", 4.0))}, r"is over, and 'b' has not got its reward of 4\.0"),
    ],
)
def test_no_reward_of_an_agent_that_has_ended_or_does_not_end_is_lost(told, message):
    with pytest.raises(SpecError, match=message):
        list(rollout(Lives(told), 5))


@pytest.mark.parametrize("turn", [{2: acts}, {3: acts}, {}])
def test_an_agent_that_comes_back_gets_what_it_is_given_before_its_first_turn(turn):
    """Its first life has 1, its second one 100 and 5: in one LAST, be it after a turn or without any."""
    back = lambda e: (e._come_back("b"), e._reward("b", 100.0), turn.get(2, id)(e))  # noqa: E731
    told = {**turn, 2: back, 4: lambda e: (e._reward("b", 5.0), e._end("b", None))}
    given = [t["b"] for t in rollout(Lives(told), 5) if "b" in t]
    assert [t.reward for t in given if t.last()] == [1.0, 105.0]


def test_come_and_go_has_each_case_of_the_contract():
    """The contract and the loop's returns are shown on it: without these cases they would show less."""
    environment, seen = ComeAndGo(seed=1), set()
    ended, newest = set(), {}
    for timesteps in rollout(environment, 400):
        if all(t.last() for t in newest.values()):
            ended = set()
        acting = [i for i, t in timesteps.items() if not t.last()]
        seen |= {"together"} if len(acting) > 1 else {"alone"}
        for agent_id, t in timesteps.items():
            seen |= {"late"} if t.first() and newest and agent_id not in ended else set()
            seen |= {"back"} if t.first() and agent_id in ended else set()
            seen |= {"cut off" if t.discount else "terminated"} if t.last() else set()
            seen |= {"no observation"} if t.observation is None else set()
            ended |= {agent_id} if t.last() else set()
        seen |= {"lost"} if environment.num_lost else set()
        newest = timesteps
    assert seen == {"together", "alone", "late", "back", "cut off", "terminated", "no observation", "lost"}


def test_an_environment_that_is_not_deterministic_is_told_when_it_is_restored():
    class Drifting(ComeAndGo):
        def reseed(self, seed):
            self._rng = np.random.default_rng()

    environment = ResumableMultiAgentEnvironment(Drifting())
    for _ in rollout(environment, 12):
        pass
    with pytest.raises(CheckpointError, match=r"The replayed episode is not the saved one"):
        ResumableMultiAgentEnvironment(Drifting()).restore(environment.save())


def test_an_episode_that_goes_on_and_on_is_warned_of_once(monkeypatch):
    """Each of its actions is kept."""
    monkeypatch.setattr("agentkit.envs.resumable.LONG_EPISODE", 5)
    environment = ResumableMultiAgentEnvironment(MatrixGame("climbing", rounds=20))
    environment.reset()
    with pytest.warns(
        UserWarning, match="An episode has gone on for .* each of its actions is kept .* max_cycles"
    ) as told:
        for _ in range(12):
            environment.step(dict.fromkeys(environment.agent_specs(), np.int32(0)))
    assert len(told) == 1


def test_what_cannot_be_reseeded_cannot_be_resumable():
    class Fixed(TicTacToe):
        reseed = None

        def __init__(self):
            pass

    with pytest.raises(ConfigError, match=r"Fixed has no reseed\(seed\)"):
        ResumableMultiAgentEnvironment(Fixed())


class TestTwoStepGameInJax(MultiAgentEnvironmentContract):
    def make_environment(self):
        return envs.make_multi_agent("jax:two_step_game", seed=3)


def test_the_two_step_game_in_jax_is_its_twin():
    ours, twin = envs.make_multi_agent("jax:two_step_game"), envs.make_multi_agent("agentkit:two_step_game")
    assert ours.agent_specs() == twin.agent_specs() and ours.state_spec() == twin.state_spec()
    for one, other in zip(rollout(ours, 200), rollout(twin, 200), strict=True):
        for agent_id in one:
            tree.map_structure(np.testing.assert_array_equal, one[agent_id], other[agent_id])
        np.testing.assert_array_equal(ours.state(), twin.state())
