"""Self-play: opponents from pools of earlier parameters, kept, drawn, saved and resumed; tournaments with Elo."""

import dataclasses

import numpy as np
import pytest

import agentkit
from agentkit.actors import ReadyPolicyActor
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.errors import AgentkitError, CheckpointError, ConfigError, UnknownNameError
from agentkit.experiment.local import started
from agentkit.experiment.multi_agent.build import check_policies
from agentkit.experiment.multi_agent.judging.tournament import elo_of
from agentkit.experiment.multi_agent.pools import Earlier, chances, score_of
from agentkit.learning import Linear
from tests.experiment.perfect_player import free, losing_lines, perfect_moves, play, player_of, value
from tests.experiment.test_multi_agent import DQN, assert_equal, config, saved

POOL = agentkit.Pool("prioritized", period=20, size=3, share=0.9)


@pytest.mark.parametrize(("pool", "expected"), [(None, 1 / 2), (agentkit.Pool(share=1.0), 1 / 4)])
def test_a_policy_learns_from_its_share_of_actions(tmp_path, pool, expected):
    """Two of four agents learn; with opponents from a pool one of the two does in each episode."""
    who = {f"agent_{i}": "learner" if i < 2 else "chance" for i in range(4)}
    policies = {"learner": DQN, "chance": "random"}
    plan = config(tmp_path, policies, who, environment="agentkit:come_and_go", opponents=pool)
    (trained,) = check_policies(plan)[1]
    assert trained.learned_share == expected


def test_opponents_are_drawn_as_the_papers_say():
    pool = [Earlier(step, None) for step in (10, 20, 30)]
    for earlier, scores in zip(pool, ([1, 1, 1], [1, 0.5, 0], []), strict=True):
        for score in scores:
            earlier.add_game("a", score)
    np.testing.assert_allclose(chances(pool, "newest", "a"), [0, 0, 1])
    np.testing.assert_allclose(chances(pool, "uniform", "a"), [1 / 3, 1 / 3, 1 / 3])
    # The newest game counts most: of 0.99^2 + 0.99 + 1 games 0.99^2 + 0.99 / 2 are won; of one game more, a half.
    lost = 1 - (0.9801 + 0.495 + 0.5) / 3.9701
    weights = np.array([(0.5 / 3.9701) ** 2, lost**2, 0.25])
    np.testing.assert_allclose(chances(pool, "prioritized", "a"), weights / weights.sum())
    np.testing.assert_allclose(chances(pool, "prioritized", "b"), [1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(chances(pool[:1], "prioritized", "a"), [1])  # All are beaten each time.
    lucky, unknown = Earlier(10, None, {"a": 1.0}, {"a": 1.0}), Earlier(20, None)
    np.testing.assert_allclose(chances([lucky, unknown], "prioritized", "a"), [0.2, 0.8])  # One win of one game.
    for _ in range(5_000):
        lucky.add_game("a", 1.0)
    np.testing.assert_allclose(chances([lucky, unknown], "prioritized", "a")[0], 4 * (0.5 / 101) ** 2, rtol=1e-3)
    assert [score_of(2.0, 1.0), score_of(1.0, 1.0), score_of(-1.0, 1.0)] == [1.0, 0.5, 0.0]


def test_an_agent_learns_while_the_others_play_by_what_was_kept():
    """Parameters are kept each 20 steps, at an episode's start, the three newest; what is kept stays as it was."""
    experiment = config(policy_of="each", num_steps=200, opponents=dataclasses.replace(POOL, share=1.0))
    seen, learned = {}, {"first": 0, "second": 0}
    with started(experiment, False) as (training, _):
        work, self_play = training.work, training.work.self_play
        for _ in range(200):
            before = {name: int(each.replay.info(each.table).num_inserted) for name, each in _by_policy(work).items()}
            work.step()
            pools, playing = self_play.pools.by_policy, dict(self_play._playing[0])
            for policy_id, pool in pools.items():
                for earlier in pool:
                    params = [np.array(leaf) for leaf in _leaves(earlier.params)]
                    assert_equal(params, seen.setdefault((policy_id, earlier.step), params))
            grown = [n for n, each in _by_policy(work).items() if each.replay.info(each.table).num_inserted > before[n]]
            for name in grown:
                learned[name] += bool(playing)
            if playing and not work.loop.beginning:
                (opponent,) = playing
                assert opponent not in grown and playing[opponent] in pools[opponent]
                assert work.actors[opponent]._client.params is playing[opponent].params
    assert min(learned.values()) > 0, "both take turns to learn"
    steps = {policy_id: [step for name, step in seen if name == policy_id] for policy_id in ("first", "second")}
    assert steps["first"] == steps["second"] and len(steps["first"]) == 9
    assert [step // 20 for step in steps["first"]] == list(range(1, 10))
    assert [earlier.step for earlier in self_play.pools.by_policy["first"]] == steps["first"][-3:]
    assert not np.array_equal(seen["first", steps["first"][0]][0], seen["first", steps["first"][-1]][0])


def test_each_of_several_environments_has_opponents_of_its_own(monkeypatch):
    """A policy call has the rows of those environments alone in which it acts by the same parameters."""
    agent = dqn.make_agent(dataclasses.replace(DQN.config, n_step=1))
    pool = dataclasses.replace(POOL, choose="uniform")
    experiment = config(policies=agent, num_steps=240, num_envs=4, opponents=pool)
    calls = []
    act = ReadyPolicyActor.select_action
    monkeypatch.setattr(
        ReadyPolicyActor,
        "select_action",
        lambda self, seen, numbers: calls.append((self, self._client.params, numbers)) or act(self, seen, numbers),
    )
    together, by_newest, by_earlier = 0, 0, 0
    with started(experiment, False) as (training, _):
        work, self_play = training.work, training.work.self_play
        (learning,) = work.learning
        while work.num_steps < 240:
            calls.clear()
            newest = learning.trained.client.params
            work.step()
            held = {work.actors[agent_id]: seat.held for agent_id, seat in self_play.seats.items()}
            for actor, params, numbers in calls:
                expected = [newest if held[actor][number] is None else held[actor][number] for number in numbers]
                assert all(each is params for each in expected)
                by_newest += len(numbers) * (params is newest)
                by_earlier += len(numbers) * (params is not newest)
            together = max(together, len({id(params) for _, params, _ in calls}))
        rows = learning.replay.info(learning.table).num_inserted
    assert together > 2, "the newest and two of the pool in one step"
    assert by_earlier > 40 and by_newest - 8 <= rows <= by_newest, "each action has a row, but the last of each"


def _by_policy(work):
    return {each.trained.policy_id: each for each in work.learning}


def _leaves(params):
    import jax

    return jax.tree.leaves(params)


@pytest.mark.parametrize("policy_of, num_envs", [("shared", None), ("each", None), ("shared", 4)])
def test_pools_are_resumed_to_the_bit(policy_of, num_envs, tmp_path):
    """Saved while an agent plays by earlier parameters, in mid-episode; in one of 4 by such as have left the pool."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    given = {"policy_of": policy_of, "opponents": POOL, "num_envs": num_envs}
    agentkit.run(config(whole, **given, num_steps=200))
    agentkit.run(config(parts, **given, num_steps=101 if num_envs is None else 109))
    playing, left = (saved(parts)["self_play"][name] for name in ("playing", "left"))
    assert any(playing.values()) and any(left.values()) == (num_envs is not None), "choose another step"
    agentkit.resume(parts, num_steps=200)
    one, other = saved(whole), saved(parts)
    for name in ("learner", "actors", "loop", "counter", "self_play"):
        assert_equal(one[name], other[name])
    for policy_id, pool in other["self_play"]["pools"].items():
        assert len(pool) == 3 and any(earlier["games"] for earlier in pool.values()), policy_id


def test_a_checkpoint_from_before_environments_had_numbers_is_taken_back():
    with started(config(num_steps=101, opponents=POOL), False) as (training, _):
        while training.work.num_steps < 101:
            training.work.step()
        self_play = training.work.self_play
        state = self_play.save()
        assert state["playing"]["0"] and not any(state.pop("left").values()), "choose another step"
        self_play.restore({**state, "playing": state["playing"]["0"]}, mid_episode=True)
        again = self_play.save()
        del again["left"]
        assert_equal(again, state)


def test_share_says_how_many_episodes_have_such_opponents(tmp_path):
    agentkit.run(config(tmp_path / "none", num_steps=150, opponents=agentkit.Pool(period=20, share=0.0)))
    agentkit.run(config(tmp_path / "plain", num_steps=150))
    none, plain = saved(tmp_path / "none"), saved(tmp_path / "plain")
    assert_equal(none["learner"], plain["learner"])
    assert len(none["self_play"]["pools"]["shared"]) == 7


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"opponents": "uniform"}, r"opponents: expected a Pool, such as Pool\('uniform'\)"),
        ({"policies": {"a": DQN, "b": "random"}, "policy_of": {"first": "a", "second": "b"}}, "two agents or more"),
    ],
)
def test_what_a_pool_is_not_for_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        agentkit.run(config(**{"opponents": POOL, **changes}))


def test_a_pools_settings_are_checked_and_resumed_with(tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown choose 'oldest'"):
        agentkit.Pool("oldest")
    with pytest.raises(AgentkitError, match="period"):
        agentkit.Pool(period=0)
    agentkit.run(config(tmp_path, opponents=POOL, num_steps=40))
    assert agentkit.experiment.read_multi_agent_config(tmp_path).opponents == POOL
    with pytest.raises(CheckpointError, match=r"opponents: saved .*'prioritized'.*, found None"):
        agentkit.run(config(tmp_path, num_steps=60), resume=True)


def test_elo_is_the_strength_under_which_games_are_likeliest():
    strengths = np.array([1.0, 2.0, 8.0])
    games = 1e6 * (1 - np.eye(3))
    scores = games * strengths[:, None] / (strengths[:, None] + strengths)
    elo = elo_of(scores, games)
    np.testing.assert_allclose(np.diff(elo), 400 * np.log10([2, 4]), atol=0.1)
    assert elo.mean() == pytest.approx(1_500)
    always = elo_of(np.array([[0.0, 7.0], [0.0, 0.0]]), np.array([[0.0, 7.0], [7.0, 0.0]]))
    assert always[0] - always[1] == pytest.approx(400 * np.log10(7.5 / 0.5))


def test_a_tournament_of_the_newest_the_pool_chance_and_others(tmp_path):
    run = tmp_path / "run"
    agentkit.run(config(run, policy_of="each", opponents=POOL, num_steps=60))
    table = agentkit.play_tournament(run, 2, others={"old": agentkit.Frozen(run, policy="first")})
    kept = [f"step {step}" for step in saved(run)["self_play"]["pools"]["first"]]
    assert table.players == ("newest", *kept, "random", "old") and len(kept) == 2
    pairs = 4 * (1 - np.eye(5))
    np.testing.assert_array_equal(table.games, pairs)
    np.testing.assert_array_equal(table.wins + table.wins.T + table.draws, pairs)
    assert table.wins.sum() > 0 and str(table).count("\n") == 5
    again = agentkit.play_tournament(run, 2, others={"old": agentkit.Frozen(run, policy="first")})
    np.testing.assert_array_equal(again.wins, table.wins)
    with pytest.raises(ConfigError, match="'newest' is a player of the run"):
        agentkit.play_tournament(run, others={"newest": "random"})


def test_a_policy_of_several_is_saved_as_a_file_and_plays_from_it(tmp_path):
    agentkit.run(config(tmp_path / "old", policy_of="each"))
    policy = agentkit.load_multi_agent(tmp_path / "old", "second")
    policy.save(tmp_path / "second.npz")
    file, folder = agentkit.Frozen(tmp_path / "second.npz"), agentkit.Frozen(tmp_path / "old", policy="second")
    found = [
        agentkit.evaluate_multi_agent(tmp_path / "old", 5, seed=3, opponents={"first": other})
        for other in (file, folder, agentkit.Frozen(tmp_path / "old", policy="first"))
    ]
    assert found[0] == found[1] != found[2]
    new = config(tmp_path / "new", {"learner": DQN, "old": file}, {"first": "learner", "second": "old"}, num_steps=40)
    agentkit.run(new)
    agentkit.resume(tmp_path / "new", num_steps=60)
    assert saved(tmp_path / "new")["learner"].keys() == {"learner"}
    with pytest.raises(ConfigError, match="is a policy file, which has one policy; leave out policy='x'"):
        agentkit.evaluate_multi_agent(tmp_path / "old", opponents={"first": dataclasses.replace(file, policy="x")})
    with pytest.raises(ConfigError, match="has the policies first, second: say which"):
        agentkit.load_multi_agent(tmp_path / "old")


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["train", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "shared", "--run-directory", "run"]
    small = ["--set", "min_replay_size=16", "--set", "batch_size=8", "--eval-every", "0", "--steps", "60"]
    assert main([*train, *small, "--opponents", "uniform,period=20,size=2,share=1.0"]) == 0
    pool = agentkit.experiment.read_multi_agent_config("run").opponents
    assert pool == agentkit.Pool("uniform", period=20, size=2, share=1.0)
    assert main(["train", "--resume", "run", "--steps", "80"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "2", "--tournament", "--opponent", "again=run"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("Elo", "newest", "random", "again")) and out.count("step ") == 2
    for words, message in (
        (["--opponents", "some"], "Unknown choose 'some'"),
        (["--opponents", "uniform,periods=3"], "Unknown config field of the pool 'periods'"),
        (["--opponents", "uniform,period"], "--opponents: expected NAME=VALUE"),
    ):
        assert main([*train[:-1], "other", *small, *words]) != 0
        assert message in capsys.readouterr().err
    assert main(["train", "dqn", "--env", "agentkit:catch", "--steps", "9", "--opponents", "uniform"]) != 0
    assert "--opponents is for several agents" in capsys.readouterr().err


SETTLING = dqn.make_agent(
    dqn.Config(
        batch_size=128, min_replay_size=1_000, hidden_sizes=(128, 128), n_step=1, discount=1.0, updates_per_call=8,
        updates_per_step=1.0, replay_size=50_000, epsilon=Linear(0.8, 0.05, 24_000),
        learning_rate=Linear(1e-3, 1e-5, 57_600),
    )
)  # fmt: skip
"""As in docs/results/several_agents.md: one step a target, and exploration and step size that fall."""


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_self_play_with_a_pool_hardly_loses_to_the_perfect_player(seed, tmp_path):
    """Of 2,000 games, 1,000 from each side, after random openings; docs/results/several_agents.md has longer runs."""
    settings = {"num_steps": 72_000, "num_envs": 32, "environment_settings": {"random_moves": 4}}
    pool = agentkit.Pool("prioritized", period=2_000)
    agentkit.run(config(tmp_path, SETTLING, opponents=pool, seed=seed, **settings))
    choose = player_of(agentkit.load_multi_agent(tmp_path))
    lost = [play(choose, side, 1_000)[2] for side in (0, 1)]
    assert sum(lost) <= 400, lost
    assert sum(losing_lines(choose, side) for side in (0, 1)) <= 20, "of any opponent at all"


def test_the_perfect_player_and_its_judge():
    """The perfect player never loses to itself; one that takes the first free square loses to it, and to others."""
    assert [value((0,) * 9), len(perfect_moves((0,) * 9))] == [0, 9]
    assert perfect_moves((0, 0, 0, 0, -1, 0, 0, 0, 0)) == [0, 2, 6, 8], "corners alone hold the middle"
    assert [play(lambda board: perfect_moves(board)[0], side, 50) for side in (0, 1)] == [(0, 50, 0)] * 2
    assert [losing_lines(lambda board: perfect_moves(board)[0], side) for side in (0, 1)] == [0, 0]
    assert play(lambda board: free(board)[0], 1, 50)[2] > 25
    assert losing_lines(lambda board: free(board)[0], 1) > 50
