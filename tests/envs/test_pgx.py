"""Pgx's games: the contract, values beside Pgx's own functions, ends, truncation, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract
from agentkit.types import LAST, MID

pgx = pytest.importorskip("pgx")

from agentkit.envs.jax.pgx import Pgx  # noqa: E402


@pytest.fixture(autouse=True)
def _ranks_of_their_own():
    with jax.numpy_rank_promotion("allow"):  # Go needs them; the tests forbid them to agentkit.
        yield


class TestKuhnPoker(MultiAgentEnvironmentContract):
    """Deals cards, hides them, and lets either player begin."""

    num_steps = 60

    def make_environment(self):
        return envs.make_multi_agent("pgx:kuhn_poker", seed=3)


def test_steps_are_pgxs_own_and_nothing_is_reset_at_the_end():
    """The first column is won by whoever begins; Connect Four of agentkit's own is the same game."""
    environment, own, game = Pgx("connect_four"), envs.make_multi_agent("jax:connect_four"), pgx.make("connect_four")
    reset, step, their_step = jax.jit(environment.reset), jax.jit(environment.step), jax.jit(game.step)
    state, timestep = reset(jax.random.PRNGKey(1))
    theirs, order = game.init(jax.random.PRNGKey(1)), ("first", "second")
    beginner, twins = int(theirs.current_player), own.reset()
    for number, move in enumerate((0, 1, 0, 1, 6, 5, 0, 1, 0)):
        mover = int(environment.turn(state))
        assert timestep.step_type != LAST and mover == int(theirs.current_player) == (beginner + number) % 2
        seen, twin = timestep.observation[f"player_{mover}"], twins[order[number % 2]].observation
        np.testing.assert_array_equal(seen["observation"], theirs.observation)
        np.testing.assert_array_equal(seen["observation"], twin["observation"])
        np.testing.assert_array_equal(seen["action_mask"], twin["action_mask"])
        moves = {f"player_{mover}": jnp.int32(move), f"player_{1 - mover}": jnp.int32(3)}
        state, timestep = step(state, moves, jax.random.PRNGKey(0))
        theirs = their_step(theirs, jnp.int32(move))
        twins = own.step({order[number % 2]: np.int32(move)})
    assert timestep.step_type == LAST and timestep.discount == {"player_0": 0.0, "player_1": 0.0}
    for player, name in (("player_0", order[beginner]), ("player_1", order[1 - beginner])):
        assert float(timestep.reward[player]) == twins[name].reward == (1.0 if name == "first" else -1.0)
        seen = timestep.observation[player]["observation"]
        np.testing.assert_array_equal(seen, twins[name].observation["observation"])
        assert seen.dtype == np.float32 and seen.sum() == 9


def test_what_is_cut_off_is_a_truncation(monkeypatch):
    class Cut(type(pgx.make("tic_tac_toe"))):
        def _step(self, state, action, key):
            state = super()._step(state, action, key)
            return state.replace(truncated=state._step_count == 2)

    monkeypatch.setattr(pgx, "make", lambda name: Cut())
    environment = Pgx("tic_tac_toe")
    step = jax.jit(environment.step)
    state, timestep = environment.reset(jax.random.PRNGKey(0))
    for move, expected in ((0, MID), (1, LAST)):
        moves = dict.fromkeys(("player_0", "player_1"), jnp.int32(move))
        state, timestep = step(state, moves, jax.random.PRNGKey(0))
        assert timestep.step_type == expected and timestep.discount == {"player_0": 1.0, "player_1": 1.0}


@pytest.mark.full
@pytest.mark.parametrize("name", ["backgammon", "go_9x9", "hex", "leduc_holdem", "othello", "sparrow_mahjong"])
def test_states_keep_their_shapes_as_a_compiled_loop_needs(name):
    environment = Pgx(name)
    key = jax.ShapeDtypeStruct((2,), np.uint32)
    before, _ = jax.eval_shape(environment.reset, key)
    nothing = {player: jax.ShapeDtypeStruct((), np.int32) for player in environment.action_spec()}
    after, timestep = jax.eval_shape(environment.step, before, nothing, key)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), before) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), after
    )
    for player, spec in environment.observation_spec().items():
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), timestep.observation[player]) == {
            part: (each.shape, each.dtype) for part, each in spec.items()
        }


@pytest.mark.parametrize(
    ("name", "settings", "error", "match"),
    [
        ("conect_four", {}, UnknownNameError, "Did you mean 'pgx:connect_four'"),
        ("hex", {"size": 5}, UnknownNameError, "setting of pgx:hex 'size'"),
        ("hex", {"reset_pool": 0}, ConfigError, "reset_pool: expected a whole number"),
        ("minatar-breakout", {}, ConfigError, "has one player.* Take MinAtar's of gymnax, as gymnax:Breakout-MinAtar"),
        ("2048", {}, ConfigError, "pgx:2048 has one player.* Take jumanji:Game2048-v1"),
    ],
)
def test_what_there_is_not_is_refused(name, settings, error, match):
    with pytest.raises(error, match=match):
        envs.make_multi_agent(f"pgx:{name}", **settings)
