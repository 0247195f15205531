"""Several agents in the compiled loop: rows by hand, as one agent alone, resumed to the bit, learning, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, specs
from agentkit.actors.policy import Policy, stateless_policy
from agentkit.actors.step_count import count_from, count_one_more, no_steps, steps_taken
from agentkit.agents import a2c, dqn, mappo, ppo, qmix, r2d2
from agentkit.agents.common.experience import ReplayConfig, Segments, SegmentsConfig, Transitions
from agentkit.callbacks import Callback
from agentkit.cli import main
from agentkit.envs.jax.cartpole import CartPole
from agentkit.envs.jax.two_step_game import TwoStepGame
from agentkit.envs.multi_agent.wrapper import MultiAgentWrapper
from agentkit.errors import CheckpointError, ConfigError, NonFiniteError
from agentkit.experiment import read_multi_agent_config
from agentkit.experiment.on_device.loop import DeviceLoop
from agentkit.experiment.on_device.several.acting import Party, Together, keys_of_each
from agentkit.experiment.on_device.several.chance import random_policy
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import start_tally
from agentkit.testing.learning import check_returns, learns
from tests.agents.test_mappo import LEARNING
from tests.agents.test_qmix import GAME
from tests.experiment.on_device_runs import Alone, Counting, assert_equal, kill_after_170_steps

DQN = dqn.make_agent(dqn.Config(batch_size=8, min_replay_size=16, hidden_sizes=(8,), n_step=2, replay_size=200))
PPO = ppo.make_agent(ppo.Config(segment_length=8, num_minibatches=1, num_epochs=2, hidden_sizes=(8,)))
A2C = a2c.make_agent(a2c.Config(segment_length=8, hidden_sizes=(8,)))
QUIET = {"evaluation_period": 0, "progress": False}


def config(folder=None, policies=PPO, policy_of="shared", environment="jax:two_step_game", num_steps=64, **settings):
    settings = {"on_device": True, "num_envs": 2, **QUIET, **settings}
    return agentkit.MultiAgentConfig(policies, environment, num_steps, policy_of, run_directory=folder, **settings)


def saved(folder):
    return checkpoint.read_latest(folder / "checkpoints").state


def party(policy_id, agent_ids, experience=None):
    """A policy that chooses its agent's number, and learns the sum of its batches."""

    def update(training, batch):
        return training + jnp.sum(batch.data.reward), UpdateOutput({"loss": jnp.float32(0.0)}, None)

    own = Update(lambda key: jnp.float32(0.0), update, lambda training: {"policy": ()})
    policy = stateless_policy(lambda params, key, observation: observation[0].astype(jnp.int32))
    return Party(policy_id, agent_ids, policy, own, experience)


def test_the_rows_of_a_policy_are_those_of_its_agents_one_after_the_other():
    """In 2 environments: a's two rows, then b's. The third step resets, which is no step of anybody's."""
    environment, parties = Counting(), [party("shared", ("a", "b"))]
    play = Together(environment, parties, 2)
    acting = play.start(jax.random.PRNGKey(0))
    reset, rows, ended = jax.vmap(environment.reset), [], []
    for _ in range(4):
        acting, turns, episodes = play.take_step({"shared": ()}, acting, reset)
        rows.append(turns["shared"].row)
        ended.append(episodes)
    np.testing.assert_array_equal([row.action for row in rows], [[0, 0, 1, 1]] * 2 + [[0] * 4, [0, 0, 1, 1]])
    np.testing.assert_array_equal(
        [row.reward for row in rows], [[1, 1, 10, 10], [2, 2, 20, 20], [0] * 4, [1, 1, 10, 10]]
    )
    np.testing.assert_array_equal([row.discount for row in rows], [[1] * 4, [0, 0, 1, 1], [0] * 4, [1] * 4])
    np.testing.assert_array_equal([row.start_of_episode[0] for row in rows], [True, False, False, True])
    np.testing.assert_array_equal([row.observation[3] for row in rows], [[1, 0], [1, 1], [1, 2], [1, 0]])
    assert [int(each.count) for each in ended] == [0, 2, 0, 0] and int(acting.num_steps) == 6
    assert float(ended[1].total_return) == 2 * 33 and float(ended[1].by_agent["b"]) == 2 * 30
    assert int(ended[1].total_length) == 4 and int(acting.num_episodes) == 2


def test_the_schedules_of_agents_that_share_a_policy_count_the_steps_of_each():
    """As on the host: in 3 environments each step counts 3, and the reset none."""

    def act(params, key, observation, count):
        return jnp.int32(0), count_one_more(count), ()

    environment = Counting()
    shared = party("shared", ("a", "b"))._replace(policy=Policy(act, no_steps, begin=count_from))
    play = Together(environment, [shared], 3)
    acting = play.start(jax.random.PRNGKey(0))
    for _ in range(4):
        acting, _, _ = play.take_step({"shared": ()}, acting, jax.vmap(environment.reset))
    assert set(steps_taken(acting.policy["shared"].T).tolist()) == {3 * 3}


def test_no_policy_has_a_key_that_another_makes_of_its_own():
    """The first one's is the key itself, which it splits."""
    first, *others = (np.asarray(key).tolist() for key in keys_of_each(jax.random.PRNGKey(3), 6))
    assert first == jax.random.PRNGKey(3).tolist() and len(set(map(tuple, others))) == 5
    for number in (2, 3, 8):
        parts = jax.random.split(jax.random.PRNGKey(3), number).tolist()
        assert not [each for each in others if each in parts]


def test_segments_of_several_updates_a_round_have_the_next_row_behind_them():
    """T = 2, and a batch of three segments of one agent's one environment: a round has 6 rows, of two episodes."""
    experience = Segments(SegmentsConfig(segment_length=2, batch_size=3))
    seen = []

    def update(training, batch):
        seen.append(batch.data)
        return training, UpdateOutput({"loss": jnp.float32(0.0)}, None)

    own = party("b", ("b",), experience)._replace(update=Update(lambda key: (), update, lambda _: {"policy": ()}))
    rounds = SeveralRounds(OnlyB(), [own], 1)
    acting = rounds.start(jax.random.PRNGKey(0))
    with jax.disable_jit():
        found = rounds.run({"b": ()}, acting, {"b": ()}, {"b": start_tally(0)}, {"b": {}}, jnp.int32(0))
    assert rounds.rows == 6 and int(found.acting.num_steps) == 4 and int(found.tally["b"][0]) == 1
    data = seen[-1]
    np.testing.assert_array_equal(data.observation[..., 1], [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    np.testing.assert_array_equal(data.start_of_episode, data.observation[..., 1] == 0)
    np.testing.assert_array_equal(data.reward, [[10, 20, 0], [0, 10, 0], [20, 0, 0]])


@dataclasses.dataclass(frozen=True)
class Emptied(Counting):
    """Its masks allow nothing after the first step, and none at the end, where nobody is to act."""

    shape: tuple[int, ...] = (3,)

    def observation_spec(self):
        mask = specs.Array(self.shape, bool)
        return {name: {"seen": spec, "action_mask": mask} for name, spec in super().observation_spec().items()}

    def _observe(self, count):
        mask = jnp.zeros(self.shape, bool).at[0].set(count == 0)
        return {name: {"seen": seen, "action_mask": mask} for name, seen in super()._observe(count).items()}


@pytest.mark.parametrize("shape", [(3,), (3, 2), (4, 2)], ids=str)
def test_masks_that_allow_nothing_to_who_acts_are_counted(shape):
    """As the host's loop refuses them; it was acted on in silence."""
    experience = Transitions(ReplayConfig(n_step=1, replay_size=99, min_replay_size=99))
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    both = party("shared", ("a", "b"), experience)._replace(policy=policy)
    loop = DeviceLoop(SeveralRounds(Emptied(shape=shape), [both], 2))
    training, first = {"shared": jnp.float32(0.0)}, loop.start(jax.random.PRNGKey(0))
    chunk = loop.run(training, first, {"shared": start_tally(0)}, 8, 1)
    # 2 episodes of 2 steps in 2 environments: one of each agent's two masks in an episode.
    assert int(chunk.report.num_steps[0]) == 8 and int(chunk.report.episodes.num_out_of_range[0]) == 8


class OnlyB(Counting):
    """Has "b" alone."""

    def observation_spec(self):
        return {"b": super().observation_spec()["b"]}

    def action_spec(self):
        return {"b": super().action_spec()["b"]}

    def reset(self, key):
        return self._only(super().reset(key))

    def step(self, state, action, key):
        return self._only(super().step(state, {"a": 0, **action}, key))

    def _only(self, found):
        state, timestep = found
        return state, type(timestep)(timestep.step_type, *({"b": field["b"]} for field in timestep[1:]))


@pytest.mark.full
@pytest.mark.parametrize("agent", [A2C, DQN], ids=["a2c", "dqn"])
def test_one_agent_as_one_of_several_is_the_same_to_the_bit(agent, tmp_path):
    environment, folders = CartPole(max_steps=12), (tmp_path / "one", tmp_path / "several")
    given = {"num_envs": 2, "on_device": True, "seed": 3, **QUIET}
    agentkit.run(agentkit.ExperimentConfig(agent, environment, 96, run_directory=folders[0], **given))
    agentkit.run(config(folders[1], agent, environment=Alone(environment), num_steps=96, seed=3))
    one, several = (saved(folder) for folder in folders)
    assert_equal(one["learner"], several["learner"]["shared"])
    assert int(one["learner"]["num_updates"]) > 0 and one["num_steps"] == several["num_steps"]
    rows = [agentkit.open_run(str(folder)).rows("train") for folder in folders]
    assert [row["episode_return"] for row in rows[0]] == [row["episode_return/only"] for row in rows[1]]


MIXED = {"ours": PPO, "theirs": DQN}
WHO = {"agent_1": "ours", "agent_2": "theirs"}


def plan(run_directory, num_steps=300, **settings):
    return config(run_directory, MIXED, WHO, num_steps=num_steps, **settings)


@pytest.mark.full
def test_two_policies_of_two_kinds_are_killed_and_resumed_to_the_bit(tmp_path):
    """One learns from segments at the end of a round, the other from its replay after each step."""
    agentkit.run(plan(tmp_path / "whole", checkpoint_period=90))
    kill_after_170_steps("test_several_on_device", tmp_path / "killed")
    with pytest.raises(CheckpointError, match="on_device"):
        agentkit.resume(tmp_path / "killed", on_device=False)
    result = agentkit.resume(tmp_path / "killed")
    latest = checkpoint.read_latest(tmp_path / "killed" / "checkpoints")
    one, other = saved(tmp_path / "whole"), latest.state
    assert result.steps == one["num_steps"] and 300 <= result.steps < 300 + 2 * 8
    assert_equal(one["learner"], other["learner"])
    assert_equal(one["acting"], other["acting"])
    assert [path.name for path in latest.path.glob("replay*")] == ["replay-theirs"]
    updates = {name: int(each["num_updates"]) for name, each in other["learner"].items()}
    assert updates["ours"] > 8 and updates["theirs"] > 200
    row = agentkit.open_run(str(tmp_path / "killed")).rows("learner-theirs")[-1]
    assert row["agent_steps"] == 2 * row["steps"] and row["replay_size"] == 200
    train = agentkit.open_run(str(tmp_path / "killed")).rows("train")
    assert [r["episode_return"] for r in train] == pytest.approx(
        [r["episode_return/agent_1"] + r["episode_return/agent_2"] for r in train], rel=1e-5
    )


@pytest.mark.full
def test_a_chunk_of_four_rounds_is_two_of_two():
    """With a memory: R2D2's core, shared by both agents."""
    agent = r2d2.make_agent(
        r2d2.Config(
            core_size=4, hidden_sizes=(4,), batch_size=4, min_replay_size=4, replay_size=60, sequence_length=4,
            sequence_period=2, burn_in=1,
        )
    )  # fmt: skip
    from agentkit.experiment.on_device.loop import DeviceLoop

    spec = TwoStepGame().agent_specs()["agent_1"]
    agent = agent.with_num_envs(4)
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    ours = Party("shared", ("agent_1", "agent_2"), agent.make_policy(networks), update, agent.experience)
    loop = DeviceLoop(SeveralRounds(TwoStepGame(), [ours], 2))
    init = jax.jit(loop.first_training)

    def begin():
        return init(jax.random.PRNGKey(0)), loop.start(jax.random.PRNGKey(1)), {"shared": start_tally(0)}

    whole = loop.run(*begin(), 10_000, 4)
    part = loop.run(*begin(), 10_000, 2)
    part = loop.run(part.training, part.state, part.tally, 10_000, 2)
    assert_equal(whole.training, part.training)
    assert_equal(whole.state, part.state)
    assert int(whole.tally["shared"][0]) > 20


def test_chance_draws_among_what_is_allowed_and_within_the_bounds():
    keys = jax.random.split(jax.random.PRNGKey(0), 400)
    masked = random_policy(specs.DiscreteArray(4, dtype=np.int32))
    mask = {"observation": jnp.zeros(1), specs.ACTION_MASK: jnp.array([True, False, True, False])}
    for seen in (mask, {"board": mask, "clock": jnp.zeros(1)}):
        drawn = jax.vmap(lambda key, seen=seen: masked.act((), key, seen, ())[0])(keys)
        np.testing.assert_array_equal(np.unique(drawn), [0, 2])
    free = random_policy({"a": specs.BoundedArray((2,), np.float32, -1.0, 3.0), "b": specs.DiscreteArray(3)})
    drawn = jax.vmap(lambda key: free.act((), key, jnp.zeros(1), ())[0])(keys)
    assert -1 <= drawn["a"].min() < -0.9 and 2.9 < drawn["a"].max() <= 3
    np.testing.assert_array_equal(np.unique(drawn["b"]), [0, 1, 2])
    several = random_policy(
        (specs.BoundedArray((2,), np.int32, 0, [2, 1]), specs.BoundedArray((2,), np.float32, -1, [1, 3]))
    )
    choices, numbers = jax.vmap(lambda key: several.act((), key, jnp.zeros(1), ())[0])(keys)
    assert [np.unique(each).tolist() for each in choices.T] == [[0, 1, 2], [0, 1]]
    assert (numbers.min(0) >= -1).all() and 0.9 < numbers[:, 0].max() <= 1 and 2.9 < numbers[:, 1].max() <= 3


def test_chance_heeds_a_mask_of_one_choice_that_allows_any():
    """Networks take a mask without any as one of all."""
    keys, seen = jax.random.split(jax.random.PRNGKey(0), 100), {"board": {specs.ACTION_MASK: jnp.zeros(3, bool)}}

    def draw(spec, observation):
        return jax.vmap(lambda key: random_policy(spec).act((), key, observation, ())[0])(keys)

    np.testing.assert_array_equal(np.unique(draw(specs.DiscreteArray(3), seen)), [0, 1, 2])
    for spec in (specs.BoundedArray((2,), np.float32, -1.0, 1.0), {"a": specs.DiscreteArray(3)}):
        assert_equal(draw(spec, seen), draw(spec, jnp.zeros(1)))


LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, np.inf),
        ([-np.inf, 0.2], 0.5),
        (5.0, np.inf),
        ([-1.0, -np.inf], [1.0, np.inf]),
        (-LARGEST, LARGEST),
        (-LARGEST, 3),
    ],
)
def test_chance_draws_what_lacks_a_bound_within_the_other(low, high):
    spec = specs.BoundedArray((2,), np.float32, low, high)
    keys = jax.random.split(jax.random.PRNGKey(0), 40)
    drawn = np.asarray(jax.vmap(lambda key: random_policy(spec).act((), key, jnp.zeros(1), ())[0])(keys))
    assert drawn.dtype == np.float32 and (drawn >= spec.minimum).all() and (drawn <= spec.maximum).all()
    assert np.abs(drawn).max() < 20 and all(len(np.unique(each)) == 40 for each in drawn.T)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.uint8, 0, 255),
        (np.int8, -128, 127),
        (np.int16, [-32768, 5], [32767, 6]),
        (np.int32, [-(2**31), 2**31 - 2], 2**31 - 1),
        (np.uint32, [0, 2**32 - 2], 2**32 - 1),
        (bool, False, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_chance_draws_integers_up_to_both_ends_of_their_dtype(dtype, low, high):
    """One more than the upper end was the lower one, so that all draws were 0; booleans were an error."""
    policy = random_policy(specs.BoundedArray((2,), dtype, low, high))
    keys = jax.random.split(jax.random.PRNGKey(0), 4_000)
    drawn = np.asarray(jax.vmap(lambda key: policy.act((), key, jnp.zeros(1), ())[0])(keys))
    assert drawn.dtype == dtype
    lowest, highest = (np.broadcast_to(x, 2).astype(np.int64) for x in (low, high))
    found = (drawn.astype(np.float64) - lowest) / (highest - lowest)
    assert (found.min(0) <= 0.01).all() and (found.max(0) >= 0.99).all() and found.min() >= 0 and found.max() <= 1
    np.testing.assert_allclose(found.mean(0), 0.5, atol=0.04)


@pytest.mark.full
def test_policies_that_learn_nothing_play_beside_those_that_do(tmp_path):
    """Of a run's folder, and chance; the run's agent chooses the game of 7 whatever its partner does."""
    explores = dqn.make_agent(dqn.Config(hidden_sizes=(16,), batch_size=16, min_replay_size=32, epsilon=0.5))
    agentkit.run(config(tmp_path / "old", explores, "each", num_steps=600))
    frozen = agentkit.Frozen(tmp_path / "old", policy="agent_1")
    policies, policy_of = {"new": A2C, "old": frozen}, {"agent_1": "old", "agent_2": "new"}
    agentkit.run(config(tmp_path / "new", policies, policy_of, num_steps=64))
    assert saved(tmp_path / "new")["learner"].keys() == {"new"}
    old = {row["episode_return"] for row in agentkit.open_run(str(tmp_path / "new")).rows("train")}
    policies = {"new": A2C, "chance": "random"}
    agentkit.run(config(tmp_path / "chance", policies, {"agent_1": "chance", "agent_2": "new"}, num_steps=64))
    chance = {row["episode_return"] for row in agentkit.open_run(str(tmp_path / "chance")).rows("train")}
    assert old == {7.0} and len(chance) > 1


def test_steps_may_be_counted_by_agents(tmp_path):
    agentkit.run(config(tmp_path, num_steps=64, count_steps_by="agents", evaluation_period=32, evaluation_episodes=2))
    log = agentkit.open_run(str(tmp_path))
    train = log.rows("train")
    assert all(row["agent_steps"] == row["steps"] for row in train)
    assert train[-1]["episodes"] == pytest.approx(train[-1]["steps"] / 4, abs=2), "two agents, two steps an episode"
    evaluations = log.rows("evaluation")
    assert len(evaluations) == 2 and {"episode_return/agent_1", "wins/agent_2"} <= evaluations[-1].keys()
    assert agentkit.load(tmp_path, explore=True).num_steps == 32  # Of one agent, as schedules of exploration go.


def test_a_reward_that_is_nan_stops_the_run(tmp_path):
    with pytest.raises(NonFiniteError, match="the environment gave a reward or an observation"):
        agentkit.run(config(tmp_path, environment=Counting(bad_at=2)))


class Scaled(MultiAgentWrapper):
    def step(self, actions):
        return {name: each._replace(reward=10 * each.reward) for name, each in super().step(actions).items()}


def scaled(seed):
    return Scaled(agentkit.envs.make_multi_agent("jax:two_step_game", seed, raw=True))


class OnEpisode(Callback):
    def on_episode(self, run, episode):
        pass


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"environment": "agentkit:two_step_game"}, "the environment agentkit:two_step_game: it is none of several"),
        ({"environment": scaled}, r"wrappers \(Scaled in the environment scaled\): they are Python"),
        ({"callbacks": [OnEpisode()]}, "the callback OnEpisode with on_episode"),
        ({"policies": {"a": PPO, "b": a2c.make_agent(a2c.Config(segment_length=5, hidden_sizes=(4,)))},
          "policy_of": {"agent_1": "a", "agent_2": "b"}}, "a: 8, b: 5"),
        ({"num_steps": 2**31}, "steps are counted below"),
        ({"num_steps": 2**31 - 15}, "with rounds of 16: the last round goes beyond the end"),
    ],
)  # fmt: skip
def test_what_the_loop_cannot_do_is_refused_before_there_is_a_folder(changes, match, tmp_path):
    with pytest.raises(agentkit.errors.AgentkitError, match=match):
        agentkit.run(config(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_launch_refuses_the_compiled_loop(tmp_path):
    with pytest.raises(ConfigError, match="the compiled loop is one process"):
        agentkit.launch(config(tmp_path / "run"))


def test_an_environment_of_several_agents_is_refused_for_one():
    of_a_class = r"has several agents, and this is for one agent.*in JAX an agentkit.envs.jax.team.JaxTeam; see"
    with pytest.raises(ConfigError, match=of_a_class):
        agentkit.envs.make(TwoStepGame)  # team:TwoStepGame is no name that could be made.
    with pytest.raises(ConfigError, match=r"has several agents.* takes team:jax:two_step_game; see"):
        agentkit.envs.make("jax:two_step_game")


def test_the_command_trains_and_what_it_made_is_evaluated_and_loaded(tmp_path, capsys):
    folder = str(tmp_path / "run")
    words = ["train", "ppo", "--env", "jax:two_step_game", "--policies", "shared", "--on-device", "--num-envs", "4"]
    words += ["--steps", "128", "--set", "hidden_sizes=8", "--set", "num_minibatches=1", "--set", "segment_length=8"]
    assert main([*words, "--eval-every", "64", "--eval-episodes", "2", "--run-directory", folder]) == 0
    assert read_multi_agent_config(folder).on_device
    assert main(["evaluate", folder, "--episodes", "2"]) == 0
    assert "agent_2" in capsys.readouterr().out
    assert agentkit.load(folder, policy="shared") is not None
    assert main(["evaluate", folder, "--episodes", "1", "--video", str(tmp_path / "game.gif")]) == 2
    assert "nothing to see: TwoStepGame has no render(state)" in capsys.readouterr().err


@pytest.mark.full
def test_independent_learners_agree_on_one_of_the_better_games(tmp_path):
    """Each for itself they find 7 and not 8, as on the host; random play's mean is 4.75."""
    agent = ppo.make_agent(
        ppo.Config(segment_length=8, num_minibatches=1, hidden_sizes=(16,), learning_rate=3e-3, entropy_cost=0.01)
    )
    returns = []
    for seed in range(3):
        given = {"num_steps": 6_000, "num_envs": 8, "seed": seed, "evaluation_period": 6_000, "evaluation_episodes": 1}
        agentkit.run(config(tmp_path / str(seed), agent, "each", **given))
        returns.append(agentkit.open_run(str(tmp_path / str(seed))).rows("evaluation")[-1]["episode_return"])
    check_returns(returns, 7.0, range(3), "6,000 steps")


@pytest.mark.full
def test_teams_learn_in_the_loop():
    """The game of 8 needs both: QMIX finds it from its replay, MAPPO from segments."""
    learns(qmix.make_agent(qmix.Config(**GAME)), "team:jax:two_step_game", 4_000, 8.0, on_device=True)
    learns(mappo.make_agent(mappo.Config(**LEARNING)), "team:jax:two_step_game", 6_000, 8.0, num_envs=8, on_device=True)
