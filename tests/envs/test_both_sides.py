"""One agent that plays both sides of a game: what it sees and is paid, by hand and in JAX; values; search; refusals."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import envs, losses, specs
from agentkit.actors.random_actor import sample_legal_action
from agentkit.agents import dqn, ppo
from agentkit.agents.gumbel_muzero import Config, make_networks, make_policy
from agentkit.core import MultiAgentEnvironment
from agentkit.datasets.episodes import fit_episodes
from agentkit.envs.jax.both_sides import JaxBothSides
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.tic_tac_toe import TicTacToe
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.multi_agent.both_sides import BothSides
from agentkit.envs.step_check import StepCheck
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.evaluation.record_episodes import read_replay
from agentkit.learning import Linear
from agentkit.testing.environment import EnvironmentContract
from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations
from tests.envs.test_team import Script
from tests.envs.test_turns_in_jax import Relay
from tests.experiment.perfect_player import losing_lines, play, player_of

ON_THE_HOST, IN_JAX = "both_sides:agentkit:tic_tac_toe", "both_sides:jax:tic_tac_toe"


class TestOnTheHost(EnvironmentContract):
    name = ON_THE_HOST
    num_steps = 60

    def make_environment(self):
        return envs.make(self.name, seed=3, random_moves=4)

    def sample(self, environment, rng):
        """Returns a move that is allowed where the game stands."""
        newest = environment._timestep
        if newest is None or newest.last():
            return np.int32(0)
        return sample_legal_action(environment.action_spec(), newest.observation, rng)


class TestInJax(TestOnTheHost):
    name = IN_JAX


@pytest.mark.parametrize("name", [ON_THE_HOST, IN_JAX])
def test_who_moves_is_paid_and_who_is_next_is_shown_the_game(name):
    """The first takes the upper row in its third move: 1 for it, and the second's view of a game that is over."""
    environment = envs.make(name, raw=True)
    assert isinstance(environment, BothSides if name == ON_THE_HOST else DmEnvironment)
    given = [environment.reset(), *(environment.step(np.int32(square)) for square in (0, 4, 1, 8, 2))]
    assert [t.step_type.value for t in given] == [0, 1, 1, 1, 1, 2]
    assert [t.reward for t in given[1:]] == [0, 0, 0, 0, 1] and [t.discount for t in given[1:]] == [-1, -1, -1, -1, 0]
    taken = [0, 4, 1, 8, 2]
    for number, timestep in enumerate(given):
        own, other = timestep.observation["observation"].T
        assert np.flatnonzero(own).tolist() == sorted(taken[number % 2 : number : 2])
        assert np.flatnonzero(other).tolist() == sorted(taken[1 - number % 2 : number : 2])
        assert np.flatnonzero(timestep.observation["action_mask"] == 0).tolist() == sorted(taken[:number])
    assert environment.step(np.int32(0)).first()


def test_it_is_the_same_in_jax():
    ours, twin = envs.make(IN_JAX), envs.make(ON_THE_HOST)
    assert specs.make_environment_spec(ours) == specs.make_environment_spec(twin)
    rng = np.random.default_rng(0)
    one, other = ours.reset(), twin.reset()
    for _ in range(200):
        jax.tree.map(np.testing.assert_array_equal, one, other)
        action = np.int32(rng.choice(np.flatnonzero(one.observation["action_mask"])) if not one.last() else 0)
        one, other = ours.step(action), twin.step(action)


def test_a_discount_below_zero_is_taken_where_the_spec_has_it():
    spec = specs.make_environment_spec(envs.make(IN_JAX))
    seen = specs.zeros(spec.observations)
    for discount in (-1.0, 0.0, 1.0):
        StepCheck(spec)(dm_env.transition(np.float32(0), seen, np.float32(discount)))
    with pytest.raises(SpecError, match=r"discount is -1\.5; expected -1 \(the other player is next\) to 1"):
        StepCheck(spec)(dm_env.transition(np.float32(0), seen, np.float32(-1.5)))
    ordinary = StepCheck(spec._replace(discounts=specs.BoundedArray((), np.float32, 0.0, 1.0)))
    with pytest.raises(SpecError, match=r"discount is -1\.0; expected 0 \(the episode terminated\) to 1"):
        ordinary(dm_env.transition(np.float32(0), seen, np.float32(-1)))


@dataclasses.dataclass(frozen=True)
class _Renamed(JaxTurnEnvironment):
    """Tic-tac-toe of "white" and "black", whose time steps JAX has sorted by these names."""

    game: TicTacToe

    def observation_spec(self):
        return dict(zip(("white", "black"), self.game.observation_spec().values(), strict=True))

    def action_spec(self):
        return dict(zip(("white", "black"), self.game.action_spec().values(), strict=True))

    def turn(self, state):
        return self.game.turn(state)

    def _renamed(self, timestep):
        names = {"white": "first", "black": "second"}
        rest = ({new: field[old] for new, old in names.items()} for field in timestep[1:])
        return jax.tree.map(lambda leaf: leaf, dm_env.TimeStep(timestep.step_type, *rest))

    def reset(self, key):
        state, timestep = self.game.reset(key)
        return state, self._renamed(timestep)

    def step(self, state, action, key):
        state, timestep = self.game.step(state, {"first": action["white"], "second": action["black"]}, key)
        return state, self._renamed(timestep)


def test_players_are_known_by_their_names():
    ours, plain = DmEnvironment(JaxBothSides(_Renamed(TicTacToe()))), DmEnvironment(JaxBothSides(TicTacToe()))
    jax.tree.map(np.testing.assert_array_equal, ours.reset(), plain.reset())
    for square in (0, 4, 1, 8, 2):
        jax.tree.map(np.testing.assert_array_equal, ours.step(np.int32(square)), plain.step(np.int32(square)))


def test_values_are_each_others_negatives():
    """Three moves before it wins a position is worth 0.9^2 to who wins, and two before -0.9 to who loses."""
    discounts = 0.9 * jnp.array([[-1.0, -1.0, 0.0]])
    targets = losses.n_step_targets(jnp.array([[0.0, 0.0, 1.0]]), discounts, jnp.zeros((1, 4)), jnp.ones((1, 3)), 9)
    np.testing.assert_allclose(targets, [[0.81, -0.9, 1.0]], rtol=1e-6)


class _Pays(MultiAgentEnvironment):
    """Lets "a" move `moves` times and then "b" once; pays as it is told."""

    def __init__(self, moves=1, middle=(0.0, 1.0), end=(-1.0, 1.0), names=("a", "b")):
        self._moves, self._middle, self._end, self._names = moves, middle, end, names

    def agent_specs(self):
        scalar = specs.Array((), np.float32)
        one = specs.EnvironmentSpec(specs.Array((1,), np.float32), specs.DiscreteArray(2), scalar, scalar)
        return dict.fromkeys(self._names, one)

    def reset(self):
        self._count = 0
        return {"a": dm_env.restart(np.float32([0]))}

    def step(self, actions):
        self._count += 1
        seen = np.float32([self._count])
        if self._count < self._moves:
            return {"a": dm_env.TimeStep(dm_env.StepType.MID, *self._middle, seen)}
        if self._count == self._moves:
            return {"b": dm_env.restart(seen)}
        last = (dm_env.truncation(reward, seen) for reward in self._end)
        return dict(zip("ab", last, strict=True))


class _EndsAtOnce(_Pays):
    """Is over after the first move of "a"; `other` is what "b" sees: None for nothing, "" where it has no LAST."""

    def __init__(self, discount, other):
        super().__init__()
        self._discount, self._other = discount, other

    def step(self, actions):
        last = dm_env.TimeStep(dm_env.StepType.LAST, 1.0, self._discount, np.float32([5]))
        return {"a": last} | ({} if self._other == "" else {"b": last._replace(reward=-1.0, observation=self._other)})


@pytest.mark.parametrize("other", ["", None])
def test_a_game_that_is_cut_off_is_not_valued_by_what_nobody_saw(other):
    environment = BothSides(_EndsAtOnce(1.0, other))
    environment.reset()
    with pytest.raises(SpecError, match="_EndsAtOnce was cut off after a move of 'a', and 'b' has no last observation"):
        environment.step(0)
    environment = BothSides(_EndsAtOnce(0.0, other))
    environment.reset()
    over = environment.step(0)
    assert (over.reward, over.discount, over.observation) == (1.0, 0.0, 0.0), "nothing is valued where it is over"


def test_who_moves_twice_keeps_its_side_and_who_is_cut_off_goes_on():
    environment = BothSides(_Pays(moves=2))
    assert [environment.reset().step_type, environment.step(0), environment.step(0), environment.step(0)][1:] == [
        dm_env.transition(0.0, np.float32([1]), 1.0),
        dm_env.transition(0.0, np.float32([2]), -1.0),
        dm_env.TimeStep(dm_env.StepType.LAST, 1.0, -1.0, np.float32([3])),
    ]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: _Pays(moves=2, middle=(0.5, 1.0)), "games that pay at the end alone, and 'a' has the reward 0.5"),
        (lambda: _Pays(moves=2, middle=(0.0, 0.9)), "'a' has the reward 0.0 and the discount 0.9 in mid-game"),
        (lambda: _Pays(end=(0.5, 1.0)), "zero-sum games, and at the end 'b' is paid 1.0 and 'a' 0.5"),
        (lambda: _Pays(names=("a", "b", "c")), "games of two, and _Pays has 3 agents: a, b, c"),
        (lambda: Script({"a": ("first", None, None), "b": ("first", None, None)}), "found time steps of a, b at once"),
        (lambda: envs.make("agentkit:catch"), "needs a game of two agents, found ResumableEnvironment"),
    ],
)  # fmt: skip
def test_what_one_agent_cannot_play_for_both_is_refused(make, message):
    with pytest.raises(SpecError, match=message):
        environment = BothSides(make())
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(np.int32(0))


def test_games_in_jax_of_other_players_are_refused():
    with pytest.raises(SpecError, match="games of two, and Relay has 3 agents"):
        JaxBothSides(Relay())
    with pytest.raises(SpecError, match="games of two, and ComeAndGo has 4 agents"):
        envs.make("both_sides:agentkit:come_and_go")
    with pytest.raises(SpecError, match="those of jax:two_step_game act together"):
        envs.make("both_sides:jax:two_step_game")


def test_what_takes_discounts_for_0_or_1_is_refused(tmp_path):
    agent = dqn.make_agent(dqn.Config(batch_size=8, min_replay_size=16, hidden_sizes=(8,)))
    quiet = {"evaluation_period": 0, "progress": False}
    agentkit.run(agentkit.ExperimentConfig(agent, ON_THE_HOST, 60, run_directory=tmp_path, **quiet))
    with pytest.raises(ConfigError, match=r"plays both sides of a game \(both_sides:\), whose discounts of -1"):
        read_replay(tmp_path)
    spec = specs.make_environment_spec(envs.make(ON_THE_HOST))
    with pytest.raises(ConfigError, match=r"they are -1\. Learn it by playing"):
        fit_episodes([], spec, None)
    with pytest.raises(ConfigError, match="what would follow the end is the other player's"):
        TerminationsAsTruncations(envs.make(ON_THE_HOST))


def test_it_closes_its_game():
    closed = []
    game = _Pays()
    game.close = lambda: closed.append(game)
    BothSides(game).close()
    assert closed == [game]


def test_the_search_expects_the_best_reply():
    """One move leads to replies of 1 and -1, the other to 0 and 0: who takes the best for itself there chooses it."""
    spec = specs.make_environment_spec(envs.make(ON_THE_HOST))
    config = Config(discount=1.0, num_simulations=24, vmin=-1.0, vmax=1.0, num_atoms=3, rescale_values=False)
    made = make_networks(spec, config)
    assert made.turn_sign == -1.0
    assert make_networks(specs.make_environment_spec(envs.make("agentkit:catch")), config).turn_sign == 1.0
    paid = jnp.array([0.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0])  # To who moves there.
    after = jnp.array([[1, 2], [3, 4], [5, 6], [3, 3], [4, 4], [5, 5], [6, 6]])
    over = jnp.array([0, 0, 0, 1, 1, 1, 1])

    def step(params, hidden, action):
        place = hidden.argmax(-1)
        follows = after[place, jnp.minimum(action, 1)]
        reward = jnp.where(over[place] == 1, 0.0, paid[follows])
        return jnp.log(jax.nn.one_hot((reward + 1.0).astype(jnp.int32), 3) + 1e-9), jax.nn.one_hot(follows, 7)

    networks = made._replace(
        represent=lambda params, x: jnp.eye(7)[:1],
        predict=lambda params, hidden: (jnp.zeros((1, 2)), jnp.log(jnp.array([[1e-9, 1.0, 1e-9]]))),
        step=step,
        num_actions=2,
    )

    @jax.jit
    def found(sign):
        policy = make_policy(networks._replace(turn_sign=sign), config)
        return policy.act((), jax.random.PRNGKey(0), {"observation": jnp.zeros((9, 2))}, ())[2]

    assert found(-1.0)[1] > 0.9, "the other would take its 1"
    assert found(1.0)[0] > 0.9, "in a game of one that is its own"


PPO = ppo.make_agent(
    ppo.Config(
        segment_length=16, hidden_sizes=(128, 128), discount=1.0, entropy_cost=Linear(0.05, 0.005, 100_000),
        learning_rate=Linear(1e-3, 1e-4, 120_000), normalize_observations=False, normalize_values=False,
    )
)  # fmt: skip
"""What docs/results/several_agents.md has."""


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_who_plays_both_sides_loses_to_hardly_anybody(seed, tmp_path):
    """Of all lines of play of any opponent it loses 2 to 4 after 120,000 moves; an untrained one hundreds."""
    given = {"environment_settings": {"random_moves": 4}, "num_envs": 32, "on_device": True, "evaluation_period": 0}
    agentkit.run(agentkit.ExperimentConfig(PPO, IN_JAX, 120_000, seed, run_directory=tmp_path, progress=False, **given))
    choose = player_of(agentkit.load(tmp_path))
    assert sum(losing_lines(choose, side) for side in (0, 1)) <= 40
    assert play(choose, 0, 200)[2] == 0, "the first player can always draw"
