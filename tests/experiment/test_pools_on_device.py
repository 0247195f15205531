"""Self-play in the compiled loop: pools by the host's rules, who learns, resumed to the bit, tournaments, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint
from agentkit.actors.policy import Policy
from agentkit.agents import dqn, ppo, r2d2
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.pools import Earlier, chances, score_of
from agentkit.experiment.on_device.several.acting import Party, Together
from agentkit.experiment.on_device.several.opponents import NEWEST, DevicePools, Opponents, places_of, pools_of
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.experiment.on_device.several.turns import InTurns
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import start_tally
from agentkit.testing.learning import check_returns
from agentkit.types import has_action
from tests.experiment.on_device_runs import Counting, assert_equal, kill_after_170_steps
from tests.experiment.test_several_on_device import config, saved
from tests.experiment.test_turns_on_device import Relay

PPO = ppo.make_agent(ppo.Config(segment_length=8, num_minibatches=1, num_epochs=2, hidden_sizes=(8,)))
POOL = agentkit.Pool("prioritized", period=40, size=3, share=0.9)
UPDATE = Update(
    lambda key: jnp.float32(0.0), lambda training, batch: (training, UpdateOutput({})), lambda x: {"policy": x}
)


def self_play_of(pool, policy_of={"a": "one", "b": "two"}):  # noqa: B006
    return DevicePools(pool, dict.fromkeys(policy_of.values(), UPDATE), policy_of)


def keep(self_play, now, *steps):
    """Keeps parameters that are as the steps; those of "two" are their negatives."""
    for step in steps:
        now = self_play.keep(now, {"one": jnp.float32(step), "two": jnp.float32(-step)}, jnp.int32(step))
    return now


def test_parameters_are_kept_each_period_and_the_oldest_go():
    self_play = self_play_of(agentkit.Pool("uniform", period=10, size=3))
    now = keep(self_play, self_play.start(jax.random.PRNGKey(0), 4), 0, 9, 12, 19, 25, 30)
    now = keep(self_play, now._replace(games=now.games + 1), 47)
    assert int(now.num_kept) == 4 and now.steps.tolist() == [47, 25, 30]
    assert now.games[0, 1].tolist() == [0, 1, 1], "nobody has played against the newest"
    pools = pools_of(now)
    assert {name: list(pool) for name, pool in pools.items()} == {"one": ["25", "30", "47"], "two": ["25", "30", "47"]}
    assert [float(*each["params"].values()) for each in pools["two"].values()] == [-25, -30, -47]


@pytest.mark.parametrize("choose", ["newest", "uniform", "prioritized"])
def test_opponents_are_drawn_as_on_the_host(choose):
    """In 4,000 environments: one agent learns in a `share` of them, and the other plays by what is likeliest."""
    self_play = self_play_of(agentkit.Pool(choose, period=10, size=4, share=0.7))
    now = self_play.start(jax.random.PRNGKey(0), 4_000)
    everywhere = jnp.ones(4_000, bool)
    none = self_play.draw(now, everywhere, jax.random.PRNGKey(1))
    assert all((each == NEWEST).all() for each in none.playing.values()), "nothing is kept yet"
    now = keep(self_play, now, 10, 20, 30)
    now = now._replace(games=now.games.at[0, 1, :2].set(1.0), won=now.won.at[0, 1, 0].set(1.0).at[0, 1, 1].set(0.2))
    drawn = jax.tree.map(np.asarray, self_play.draw(now, everywhere, jax.random.PRNGKey(1)).playing)
    learns = {name: places == NEWEST for name, places in drawn.items()}
    assert abs((learns["a"] & learns["b"]).mean() - 0.3) < 0.03 and (learns["a"] | learns["b"]).all()
    assert abs((learns["a"] & ~learns["b"]).mean() - 0.35) < 0.03
    pool = [
        Earlier(10, None, {"one": 1.0}, {"one": 1.0}),
        Earlier(20, None, {"one": 1.0}, {"one": 0.2}),
        Earlier(30, None),
    ]
    found = np.bincount(drawn["b"][~learns["b"]], minlength=4) / np.sum(~learns["b"])
    np.testing.assert_allclose(found, [*chances(pool, choose, "one"), 0], atol=0.03)
    kept = self_play.draw(now, ~everywhere, jax.random.PRNGKey(1)).playing
    assert all((each == NEWEST).all() for each in kept.values()), "no episode begins"


def test_games_are_counted_as_on_the_host():
    """Won, drawn and lost ones, of both policies, one at a time; of two at once neither is older."""
    self_play = self_play_of(agentkit.Pool("prioritized", period=10, size=2))
    now = keep(self_play, self_play.start(jax.random.PRNGKey(0), 2), 10, 20)
    earlier = {name: [Earlier(10, None), Earlier(20, None)] for name in ("one", "two")}
    rng = np.random.default_rng(0)
    for _ in range(20):
        learner, place, returns = rng.integers(2), rng.integers(2), rng.integers(-1, 2, 2)
        playing = {name: [NEWEST if number == learner else place, NEWEST] for number, name in enumerate("ab")}
        now = now._replace(playing={name: jnp.array(each, jnp.int32) for name, each in playing.items()})
        given = {"a": jnp.float32([returns[0], 5]), "b": jnp.float32([returns[1], 6])}
        now = self_play.count(now, jnp.array([True, True]), given)
        ours, theirs = (("one", "two"), ("two", "one"))[learner]
        earlier[theirs][place].add_game(ours, score_of(returns[learner], returns[1 - learner]))
    for number, name in enumerate(("one", "two")):
        for place, each in enumerate(earlier[name]):
            ours = ("one", "two")[1 - number]
            np.testing.assert_allclose(now.games[1 - number, number, place], each.games[ours], rtol=1e-5)
            np.testing.assert_allclose(now.won[1 - number, number, place], each.won[ours], rtol=1e-5)
    assert not now.games[0, 0].any() and not now.games[1, 1].any()
    both = now._replace(playing={"a": jnp.array([NEWEST] * 2), "b": jnp.array([0, 0])}, games=0 * now.games)
    found = self_play.count(both, jnp.array([True, True]), {"a": jnp.ones(2), "b": jnp.zeros(2)})
    assert found.games[0, 1].tolist() == [2, 0] and not found.games[1].any()
    bad = {"a": jnp.array([jnp.nan, jnp.inf]), "b": jnp.array([0.0, jnp.inf])}
    scored = self_play.count(both._replace(won=0 * now.won), jnp.array([True, True]), bad)
    assert float(scored.won[0, 1, 0]) == score_of(np.nan, 0.0) + score_of(np.inf, np.inf) == 0.5
    resumed = self_play_of(agentkit.Pool(size=2), {"b": "two", "a": "one"})
    drawn = [each.draw(now, jnp.array([True, True]), jax.random.PRNGKey(3)) for each in (self_play, resumed)]
    assert_equal(*drawn)
    assert_equal(resumed.count(both, jnp.array([True, True]), {"a": jnp.ones(2), "b": jnp.zeros(2)}), found)


def _act(params, key, observation, state):
    return params.astype(jnp.int32), state, ()


@pytest.mark.parametrize("environment, way", [(Relay("abab"), InTurns), (Counting(), Together)])
def test_who_plays_by_earlier_parameters_has_no_rows(environment, way):
    """Actions are the parameters: the newest are 7 and 8, and the pool has 1 and 2 of both. Rows have none of these."""
    policy_of = {"a": "one", "b": "two"}
    self_play = self_play_of(agentkit.Pool("uniform", period=10, size=2, share=0.8), policy_of)
    parties = [Party(name, (agent_id,), Policy(_act), UPDATE) for agent_id, name in policy_of.items()]
    play = way(environment, parties, 64, self_play=self_play)
    acting = play.start(jax.random.PRNGKey(0))
    held = acting.opponents
    for step in (1, 2):
        held = self_play.keep(held, {"one": jnp.float32(step), "two": jnp.float32(step)}, jnp.int32(10 * step))
    acting = acting._replace(opponents=held)
    params = {"one": jnp.float32(7), "two": jnp.float32(8)}
    step = jax.jit(lambda acting: play.take_step(params, acting, jax.vmap(environment.reset)))
    counts, episodes = {"one": 0, "two": 0}, 0
    for _ in range(20):
        places = {agent_id: np.asarray(places_of(acting.opponents, [agent_id])) for agent_id in policy_of}
        acting, turns, ended = step(acting)
        episodes += int(ended.count)
        for (agent_id, name), newest in zip(policy_of.items(), (7, 8), strict=True):
            turn = jax.tree.map(np.asarray, turns[name])
            moved = turn.is_there & (turn.before.step_type != 2)
            assert (turn.row.action[moved] == newest).all()
            counts[name] += moved.sum()
            if way is Together:
                here = turn.before.step_type != 2
                np.testing.assert_array_equal(
                    turn.row.action[here], np.where(places[agent_id] == NEWEST, newest, 1 + places[agent_id])[here]
                )
    # Each learns in 0.2 + 0.8 / 2 of its turns but in the first episodes, before anything was drawn.
    turns_taken = 2 * episodes
    assert all(0.5 < count / turns_taken < 0.9 for count in counts.values())
    assert float(acting.opponents.games.sum()) > 0
    assert isinstance(acting.opponents, Opponents)


@pytest.mark.parametrize("environment", [Relay("abab", terminates=False), Counting()], ids=["turns", "together"])
def test_segments_have_the_newest_policys_rows_alone(environment):
    """Of actions that count in segments all are 7, which is what the newest parameters are."""

    def update(training, batch):
        counts = has_action(batch.data.start_of_episode) > 0
        wrong = jnp.sum(counts & (batch.data.action[:, :-1] != 7))
        return training + jnp.stack([0, wrong, jnp.sum(counts)]), UpdateOutput({"loss": jnp.float32(0.0)})

    own = Update(lambda key: jnp.array([7, 0, 0]), update, lambda training: {"policy": training[0]})
    experience = Segments(SegmentsConfig(segment_length=5, batch_size=16))
    rounds = SeveralRounds(
        environment, [Party("shared", ("a", "b"), Policy(_act), own, experience)], 8, pool=agentkit.Pool("uniform", 10)
    )
    acting = rounds.start(jax.random.PRNGKey(0))
    held = acting.opponents
    acting = acting._replace(opponents=held._replace(num_kept=held.num_kept + 1))  # Of parameters that are 0.
    run = jax.jit(
        lambda training, acting: rounds.run(
            training, acting, {"shared": ()}, {"shared": start_tally(0)}, {"shared": {"loss": jnp.float32(0)}}, 0
        )
    )
    training = {"shared": jnp.array([7, 0, 0])}
    for _ in range(6):
        found = run(training, acting)
        training, acting = found.training, found.acting
    _, wrong, right = training["shared"].tolist()
    assert wrong == 0 and 0.3 < right / (6 * 16 * 5) < 0.8


def test_no_update_is_made_of_segments_without_an_action():
    """With one game and short segments it happens that earlier parameters play all of them."""

    def update(training, batch):
        counts = jnp.sum(has_action(batch.data.start_of_episode))
        return training + jnp.stack([1, counts == 0]), UpdateOutput({"rows": counts})

    own = Update(lambda key: jnp.array([0, 0]), update, lambda training: {"policy": training[0]})
    experience = Segments(SegmentsConfig(segment_length=2, batch_size=1))
    rounds = SeveralRounds(
        Relay("abab"),
        [Party("shared", ("a", "b"), Policy(_act), own, experience)],
        1,
        pool=agentkit.Pool("uniform", 10),
    )
    acting = rounds.start(jax.random.PRNGKey(0))
    held = acting.opponents
    acting = acting._replace(opponents=held._replace(num_kept=held.num_kept + 1))
    run = jax.jit(lambda *given: rounds.run(given[0], given[1], {"shared": ()}, given[2], given[3], 0))
    now = {"shared": jnp.array([0, 0])}, acting, {"shared": start_tally(0)}, {"shared": {"rows": jnp.float32(0)}}
    for _ in range(12):
        found = run(*now)
        now = found.training, found.acting, found.tally, found.metrics
    updates, empty = found.training["shared"].tolist()
    assert empty == 0 and 0 < updates < 12 * 2 and found.tally["shared"][0] == updates
    assert found.metrics["shared"]["rows"] > 0


def plan(run_directory, num_steps=300, **settings):
    settings = {"opponents": POOL, "num_envs": 4, **settings}
    return config(run_directory, PPO, "each", environment="jax:tic_tac_toe", num_steps=num_steps, **settings)


@pytest.mark.full
def test_a_run_with_pools_is_killed_and_resumed_to_the_bit_and_has_a_tournament(tmp_path):
    agentkit.run(plan(tmp_path / "whole", checkpoint_period=90))
    kill_after_170_steps("test_pools_on_device", tmp_path / "killed")
    agentkit.resume(tmp_path / "killed")
    one, other = (saved(tmp_path / name) for name in ("whole", "killed"))
    assert_equal(one["learner"], other["learner"])
    assert_equal(one["acting"], other["acting"])
    assert_equal(one["self_play"], other["self_play"])
    pools = other["self_play"]["pools"]
    assert {len(pool) for pool in pools.values()} == {3}
    assert any(earlier["games"] for pool in pools.values() for earlier in pool.values())
    found = agentkit.play_tournament(tmp_path / "killed", num_episodes=1)
    assert len(found.players) == 5 and {"newest", "random"} < set(found.players)
    assert checkpoint.read_latest(tmp_path / "killed" / "checkpoints").step == other["num_steps"]


LEARNING = dqn.Config(
    batch_size=64, min_replay_size=500, hidden_sizes=(64,), n_step=1, discount=1.0, epsilon=0.3, updates_per_step=0.25
)  # fmt: skip


@pytest.mark.full
def test_a_dqn_beats_chance_from_either_side_by_self_play(tmp_path):
    """Chance has 0.3 as the first player against itself, and -0.3 as the second."""
    pool, returns = agentkit.Pool("prioritized", period=5_000, size=3), []
    for seed in range(3):
        run, given = tmp_path / str(seed), {"num_steps": 12_000, "num_envs": 8, "seed": seed, "opponents": pool}
        agentkit.run(config(run, dqn.make_agent(LEARNING), "shared", "jax:tic_tac_toe", **given))
        sides = [("first", "second"), ("second", "first")]
        found = [agentkit.evaluate_multi_agent(run, 200, opponents={other: "random"}) for _, other in sides]
        returns.append(sum(each[f"episode_return/{own}"] for each, (own, _) in zip(found, sides, strict=True)) / 2)
    check_returns(returns, 0.6, range(3), "12,000 steps")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"policies": r2d2.make_agent(), "policy_of": "shared"}, "learns from sequences, where agents act in turns or"),
        ({"opponents": agentkit.Pool(period=2**31)}, "period=2,147,483,648"),
        ({"opponents": agentkit.Pool(size=10**9)}, r"needs .* the pools of opponents .* Lower the size of the Pool"),
        ({"policies": {"a": PPO, "b": "random"}, "policy_of": {"agent_1": "a", "agent_2": "b"}}, "two agents or more"),
    ],
)
def test_what_a_pool_on_the_device_is_not_for_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        agentkit.run(config(**{"opponents": POOL, **changes}))
