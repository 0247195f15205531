"""Games in JAX whose players act in turns: the host's books, equality with twins, winners by brute force."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.envs.jax.connect_four import ConnectFour, ConnectFourState
from agentkit.envs.jax.team import JaxTeam
from agentkit.envs.jax.tic_tac_toe import TicTacToe, TicTacToeState
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.jax.turn_host import HostTurnEnvironment
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract, assert_same_timesteps, rollout
from agentkit.types import FIRST, LAST, MID

pytestmark = pytest.mark.both_stacks


@dataclasses.dataclass(frozen=True)
class Relay(JaxTurnEnvironment):
    """Lets "a", "a", "b", "a" act; "c" never does. Step k pays k to all, and each discount but the last is 0.5."""

    terminates: bool = False

    def observation_spec(self):
        return dict.fromkeys("abc", specs.Array((1,), np.float32))

    def action_spec(self):
        return dict.fromkeys("abc", specs.DiscreteArray(2, dtype=np.int32))

    def turn(self, state):
        return jnp.array([0, 0, 1, 0, 0], jnp.int32)[state]

    def reset(self, key):
        return jnp.int32(0), first_step_of(self._seen(jnp.int32(0)))

    def step(self, state, action, key):
        state, cut = state + 1, state == 3
        reward = dict.fromkeys("abc", state.astype(jnp.float32))
        timestep = next_step_of(self._seen(state), reward, cut & self.terminates, cut)
        halved = {name: jnp.where(cut, each, 0.5) for name, each in timestep.discount.items()}
        return state, timestep._replace(discount=halved)

    def _seen(self, state):
        return {name: jnp.full(1, 10.0 * number + state) for number, name in enumerate("abc")}


class Unlike(Relay):
    """Is equal to itself alone, and lets whoever is named begin."""

    __eq__, __hash__ = object.__eq__, object.__hash__
    first = 0

    def turn(self, state):
        return jnp.int32(self.first)


def test_whose_turn_it_is_goes_by_what_has_been_set_since():
    """JAX itself found what it had compiled of the same method."""
    environment = Unlike()
    for first, expected in ((0, "a"), (1, "b"), (0, "a")):
        object.__setattr__(environment, "first", first)
        assert list(HostTurnEnvironment(environment).reset()) == [expected]


class TestRelay(MultiAgentEnvironmentContract):
    num_steps = 60

    def make_environment(self):
        return envs.make_multi_agent(Relay(), seed=3)


class TestTicTacToeInJax(MultiAgentEnvironmentContract):
    num_steps = 80

    def make_environment(self):
        return envs.make_multi_agent("jax:tic_tac_toe", seed=3, random_moves=4)


class TestConnectFourInJax(MultiAgentEnvironmentContract):
    num_steps = 100

    def make_environment(self):
        return envs.make_multi_agent("jax:connect_four", seed=3, random_moves=6)


@pytest.mark.parametrize("terminates", [False, True])
def test_what_falls_between_two_turns_is_one_step(terminates):
    environment = envs.make_multi_agent(Relay, raw=True, terminates=terminates)
    assert isinstance(environment, HostTurnEnvironment) and environment.jax_environment == Relay(terminates)
    given = [environment.reset()] + [environment.step({who: np.int32(1)}) for who in "aaba"]
    last = 0.0 if terminates else 1.0
    assert [
        {who: (t.step_type, t.reward, t.discount, t.observation.item()) for who, t in timesteps.items()}
        for timesteps in given
    ] == [
        {"a": (FIRST, None, None, 0.0)},
        {"a": (MID, 1.0, 0.5, 1.0)},
        {"b": (FIRST, None, None, 12.0)},
        {"a": (MID, 2 + 3 / 2, 0.25, 3.0)},
        {
            "a": (LAST, 4.0, last, 4.0),
            "b": (LAST, 1 + 2 / 2 + 3 / 4 + 4 / 8, last / 8, 14.0),
            "c": (LAST, 1 + 2 / 2 + 3 / 4 + 4 / 8, last / 8, 24.0),
        },
    ]
    with pytest.raises(SpecError, match=r"nobody \(the episode is over"):
        environment.step({"a": np.int32(0)})


def test_what_an_agent_may_not_do_is_refused_and_changes_nothing():
    environment = envs.make_multi_agent("jax:connect_four", raw=True)
    environment.reset()
    for number in range(6):
        timesteps = environment.step({("first", "second")[number % 2]: np.int32(2)})
    before = environment.state()
    np.testing.assert_array_equal(timesteps["first"].observation["action_mask"], [1, 1, 0, 1, 1, 1, 1])
    with pytest.raises(SpecError, match=r"'first' took action 2, which is not allowed; see the action_mask"):
        environment.step({"first": np.int32(2)})
    with pytest.raises(SpecError, match="Expected the actions of first; found those of second"):
        environment.step({"second": np.int32(1)})
    with pytest.raises(ValueError, match=r"Expected an action in 0\.\.6"):
        environment.step({"first": np.int32(7)})
    np.testing.assert_array_equal(environment.state(), before)
    assert list(environment.step({"first": np.int32(3)})) == ["second"]


class Deep(ConnectFour):
    """Shows its board, and the mask with it, one level further down."""

    def observation_spec(self):
        return {player: {"board": spec} for player, spec in super().observation_spec().items()}

    def reset(self, key):
        return self._below(*super().reset(key))

    def step(self, state, action, key):
        return self._below(*super().step(state, action, key))

    def _below(self, state, timestep):
        return state, timestep._replace(observation={i: {"board": seen} for i, seen in timestep.observation.items()})


def test_a_mask_below_the_top_is_one():
    environment = envs.make_multi_agent(Deep(), raw=True)
    environment.reset()
    for number in range(6):
        environment.step({("first", "second")[number % 2]: np.int32(2)})
    with pytest.raises(SpecError, match="'first' took action 2, which is not allowed"):
        environment.step({"first": np.int32(2)})


def test_agents_in_turns_are_no_team():
    with pytest.raises(SpecError, match="those of ConnectFour act in turns"):
        JaxTeam(ConnectFour())
    with pytest.raises(SpecError, match="those of TicTacToe act in turns"):
        envs.make("team:jax:tic_tac_toe")


def test_tic_tac_toe_is_its_twin():
    ours, twin = envs.make_multi_agent("jax:tic_tac_toe"), envs.make_multi_agent("agentkit:tic_tac_toe")
    assert ours.agent_specs() == twin.agent_specs() == ours.jax_environment.agent_specs()
    assert ours.state_spec() == twin.state_spec()
    for one, other in zip(rollout(ours, 300), rollout(twin, 300), strict=True):
        assert_same_timesteps(one, other)
        np.testing.assert_array_equal(ours.state(), twin.state())
        np.testing.assert_array_equal(ours.render(), twin.render())


@pytest.mark.one_case
@pytest.mark.parametrize(("environment", "most"), [(ConnectFour(6), 6), (TicTacToe(4), 4)])
def test_chance_begins_with_no_moves_or_with_so_many(environment, most):
    state, timestep = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.PRNGKey(0), 2_000))
    pieces = np.asarray(state[0]).reshape(2_000, -1, 2)
    num_moves = pieces.sum(axis=(1, 2)).astype(int)
    np.testing.assert_allclose(np.bincount(num_moves) / 2_000, 1 / (most + 1), atol=0.03)
    np.testing.assert_array_equal(pieces.sum(axis=1), np.stack([(num_moves + 1) // 2, num_moves // 2], axis=1))
    np.testing.assert_array_equal(state.player, num_moves % 2)
    assert pieces.sum(axis=-1).max() == 1 and (np.asarray(timestep.step_type) == FIRST).all()
    first = pieces[num_moves == 1].sum(axis=(0, 2))  # Where one move is chance's: each is as likely.
    assert ((first > 0).sum() == (9 if most == 4 else 7)) and first[first > 0].min() > 0.5 * first.max()


@pytest.mark.parametrize("make", [TicTacToe, ConnectFour])
def test_what_chance_cannot_play_is_refused(make):
    with pytest.raises(ConfigError, match=r"random_moves: expected a whole number from 0 to \d, found 7"):
        make(random_moves=7)
    with pytest.raises(UnknownNameError, match="Did you mean 'random_moves'"):
        envs.make_multi_agent("jax:connect_four", random_move=2)


def has_four(pieces):
    """Looks from each square into all four directions, in plain Python."""
    own = {(int(row), int(column)) for row, column in np.argwhere(pieces)}
    directions = ((0, 1), (1, 0), (1, 1), (1, -1))
    return {
        (down, right)
        for row, column in own
        for down, right in directions
        if all((row + i * down, column + i * right) in own for i in range(4))
    }


def test_connect_four_ends_as_the_plain_rule_says():
    """Random games at once, each move compared with pieces that are dropped in numpy."""
    num_games, rng, environment = 100, np.random.default_rng(0), ConnectFour()
    state, _ = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.PRNGKey(0), num_games))
    keys, step = jnp.zeros((num_games, 2), jnp.uint32), jax.jit(jax.vmap(environment.step))
    boards, directions, live = np.zeros((num_games, 6, 7, 2), np.float32), set(), np.arange(num_games)
    for move in range(42):
        has_room = ~boards[:, 0].any(axis=-1)
        columns = np.array([rng.choice(np.flatnonzero(room)) if room.any() else 0 for room in has_room], np.int32)
        state, timestep = step(state, dict.fromkeys(("first", "second"), columns), keys)
        given = tree.map_structure(np.asarray, timestep)
        for game in live:
            row = 5 - int(boards[game, :, columns[game]].sum())
            boards[game, row, columns[game], move % 2] = 1.0
        found = {game: has_four(boards[game, :, :, move % 2]) for game in live}
        over = np.array([bool(found[game]) or move == 41 for game in live], bool)
        np.testing.assert_array_equal(given.step_type[live], np.where(over, LAST, MID))
        np.testing.assert_array_equal(given.discount["second"][live], np.where(over, 0.0, 1.0))
        sign = np.array([(1 - 2 * (move % 2)) * bool(found[game]) for game in live])
        np.testing.assert_array_equal(given.reward["first"][live], sign)
        np.testing.assert_array_equal(given.reward["second"][live], -sign)
        for who, order in (("first", (0, 1)), ("second", (1, 0))):
            np.testing.assert_array_equal(given.observation[who]["observation"][live], boards[live][..., order])
            room = ~boards[live][:, 0].any(axis=-1)
            np.testing.assert_array_equal(given.observation[who]["action_mask"][live], room)
        directions |= set().union(*found.values())
        live = live[~over]
    assert len(directions) == 4 and not live.size


def full_board():
    """Returns a full board without four in a line, but for the last piece, which is the second player's."""
    rows = ["ffssffs", "ssffssf"] * 3
    return np.array([[[who == "f", who == "s"] for who in row] for row in rows], np.float32)


def test_a_full_board_without_four_is_a_draw():
    board = full_board()
    assert board.sum() == 42 and board.sum(axis=(0, 1)).tolist() == [21, 21]
    assert not has_four(board[..., 0]) and not has_four(board[..., 1])
    board[0, 6] = 0.0
    stands = ConnectFourState(board, jnp.int32(1))
    state, timestep = jax.jit(ConnectFour().step)(stands, {"first": jnp.int32(0), "second": jnp.int32(6)}, None)
    assert timestep.step_type == LAST
    assert timestep.reward == timestep.discount == {"first": 0.0, "second": 0.0}
    assert not np.any(timestep.observation["first"]["action_mask"])
    np.testing.assert_array_equal(state.pieces, full_board())


def test_both_games_are_drawn():
    pieces = np.zeros((6, 7, 2), np.float32)
    pieces[5, 3, 0] = pieces[4, 3, 1] = 1.0
    image = ConnectFour().render(ConnectFourState(pieces, 0))
    assert image.shape == (192, 224, 3) and image.dtype == np.uint8
    assert image[170, 110].tolist() == [230, 120, 40] and image[140, 110].tolist() == [50, 100, 210]
    assert image[100, 110].tolist() == [255, 255, 255]
    assert TicTacToe().render(TicTacToeState(np.zeros((9, 2)), 0)).shape == (96, 96, 3)
