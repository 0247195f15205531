"""Wrappers of actions and rewards: what arrives inside, what is seen outside, and what evaluations go without."""

import dataclasses
import functools

import dm_env
import numpy as np
import pytest

import agentkit
from agentkit import envs, specs
from agentkit.agents import dqn
from agentkit.envs.catch import Catch
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import read_config
from agentkit.experiment.evaluation.record_episodes import record_episodes
from agentkit.experiment.policies.restore_policy import own_actions
from agentkit.wrappers.bound_actions import BoundActions
from agentkit.wrappers.canonical_actions import to_bounds
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.discretise import Discretise
from agentkit.wrappers.one_hot import OneHot
from agentkit.wrappers.registry import find
from agentkit.wrappers.reward_scale import RewardScale


class Listener(dm_env.Environment):
    """Remembers its last action; the reward is 3, the observation a nest with a choice."""

    def __init__(self, action):
        self.action = action

    def reset(self):
        return dm_env.restart(self.observe())

    def step(self, action):
        self.last = action
        return dm_env.transition(np.float32(3), self.observe())

    def observe(self):
        return {"cell": np.int32(2), "pair": np.array([1, 0], np.int32), "speed": np.float32([0.5])}

    def observation_spec(self):
        return {
            "cell": specs.DiscreteArray(4, dtype=np.int32),
            "pair": specs.BoundedArray((2,), np.int32, -1, [1, 0]),
            "speed": specs.Array((1,), np.float32),
        }

    def action_spec(self):
        return self.action

    def reward_spec(self):
        return specs.BoundedArray((), np.float32, -4.0, 4.0)


def box(low, high, shape, dtype=np.float32):
    return specs.BoundedArray(shape, dtype, low, high, "action")


@pytest.mark.parametrize(
    ("spec", "bins", "expected"),
    [
        (box(-1, 1, (1,)), 3, [[-1], [0], [1]]),
        (box([0, -2], [1, 2], (2,)), (2, 3), [[0, -2], [0, 0], [0, 2], [1, -2], [1, 0], [1, 2]]),
        (box(-1, 1, ()), 2, [-1, 1]),
        (box(3, [4, 5], (2,), np.int32), 99, [[3, 3], [3, 4], [3, 5], [4, 3], [4, 4], [4, 5]]),
    ],
)
def test_discretise_offers_the_whole_grid(spec, bins, expected):
    inner = Listener(spec)
    environment = Discretise(inner, bins)
    assert environment.action_spec().num_values == len(expected)
    for number, action in enumerate(expected):
        environment.step(np.int32(number))
        np.testing.assert_array_equal(inner.last, np.array(action, spec.dtype))
        assert inner.last.dtype == spec.dtype and inner.last.shape == spec.shape


@pytest.mark.parametrize(
    ("spec", "bins", "message"),
    [
        (box(-1, 1, (6,)), 11, "11 x 11 x 11 x 11 x 11 x 11 values make 1,771,561 choices"),
        (box(0, 10**9, (1,), np.int32), 2, "at most 4,096 values, found 1,000,000,001"),
        (box(-1, 1, (2,)), (3,), "one number or 2"),
        (box(-1, 1, (2,)), 1, "bins of 2 at least"),
        (box(-1, 1, (2,)), 3.0, "bins of 2 at least, .*found 3.0"),
        (specs.Array((2,), np.float32), 3, "finite bounds"),
        (specs.DiscreteArray(3), 3, "finite bounds"),
        ((box(-1, 1, (2,)),), 3, "one array"),
    ],
)
def test_discretise_refuses(spec, bins, message):
    with pytest.raises((SpecError, ConfigError), match=message):
        Discretise(Listener(spec), bins)


def test_unbounded_actions_get_bounds():
    inner = Listener(specs.Array((2, 2), np.float64))
    environment = BoundActions(inner, minimum=-1, maximum=5)
    assert environment.action_spec() == specs.BoundedArray((4,), np.float32, -1.0, 1.0, "action")
    environment.step(np.float32([-1, 1, 0, 7]))
    np.testing.assert_array_equal(inner.last, [[-1, 5], [2, 5]])
    with pytest.raises(ConfigError, match="minimum below the maximum"):
        BoundActions(inner, minimum=1, maximum=1)


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_actions_of_any_shape_are_a_vector_for_agents(shape, num_envs, monkeypatch):
    made = []
    monkeypatch.setitem(
        envs.prefixes._registered,
        "listens",
        lambda name, seed: made.append(Listener(box(0.0, 10.0, shape, np.float64))) or made[-1],
    )
    environment = envs.make("listens:x", num_envs=num_envs)
    size = int(np.prod(shape))
    assert environment.action_spec() == specs.BoundedArray((size,), np.float32, -1.0, 1.0, "action")
    action = np.linspace(-1, 1, size * (num_envs or 1), dtype=np.float32).reshape(
        *([num_envs] if num_envs else []), size
    )
    environment.reset()
    environment.step(action)
    heard = np.stack([inner.last for inner in made]) if num_envs else made[0].last
    assert heard.shape == (*([num_envs] if num_envs else []), *shape)
    np.testing.assert_allclose(heard.ravel(), action.ravel() * 5 + 5)
    own = own_actions(environment)  # What a policy that is loaded from a folder answers with.
    if num_envs is None:
        assert own.shape == shape
        np.testing.assert_array_equal(to_bounds(np.stack([action, action]), environment.action_spec(), own)[1], heard)


def test_one_hot():
    environment = OneHot(Listener(box(-1, 1, (1,))))
    seen = environment.reset().observation
    np.testing.assert_array_equal(seen["cell"], [0, 0, 1, 0])
    np.testing.assert_array_equal(seen["pair"], [0, 0, 1, 0, 1])  # Of -1, 0, 1 and of -1, 0.
    np.testing.assert_array_equal(seen["speed"], [0.5])
    specs.validate(seen, environment.observation_spec())
    with pytest.raises(SpecError, match="expected a choice"):
        OneHot(Catch())


@pytest.mark.parametrize(
    ("wrapper", "reward", "bounds"),
    [(functools.partial(RewardScale, scale=0.5), 1.5, (-2, 2)), (ClipReward, 1.0, (-1, 1))],
)
def test_rewards_change_and_keep_their_spec(wrapper, reward, bounds):
    environment = wrapper(Listener(box(-1, 1, (1,))))
    assert environment.reset().reward is None
    assert environment.step(np.float32([0])).reward == reward
    spec = environment.reward_spec()
    assert (spec.minimum, spec.maximum) == bounds and spec.dtype == np.float32


class Pays(Listener):
    """Pays a plain 3, whatever its spec says."""

    def __init__(self, dtype):
        super().__init__(box(-1, 1, (1,)))
        self.dtype = dtype

    def step(self, action):
        return dm_env.transition(3, self.observe())

    def reward_spec(self):
        return specs.Array((), self.dtype, "reward")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_whole_rewards_are_clipped_in_the_dtype_of_their_spec(dtype):
    clipped = ClipReward(Pays(dtype), maximum=2)
    reward = clipped.step(np.float32([0])).reward
    assert reward == 2 and reward.dtype == dtype == clipped.reward_spec().dtype
    specs.validate(reward, clipped.reward_spec())


@pytest.mark.parametrize("num_envs", [None, 2])
def test_whole_rewards_are_clipped_in_environments_by_name(num_envs, monkeypatch):
    monkeypatch.setitem(envs.prefixes._registered, "pays", lambda name, seed: Pays(np.float32))
    environment = envs.make("pays:x", num_envs=num_envs, wrappers=[ClipReward])
    environment.reset()
    reward = environment.step(np.zeros((num_envs, 1) if num_envs else (1,), np.float32)).reward
    np.testing.assert_array_equal(reward, np.ones((num_envs,) if num_envs else (), np.float32))


@pytest.mark.parametrize(("dtype", "bound"), [(np.int64, 0.5), (np.int8, 1000), (np.uint8, 1), (np.int64, np.inf)])
def test_bounds_that_whole_rewards_cannot_have_are_refused(dtype, bound):
    with pytest.raises(ConfigError, match=f"rewards are {np.dtype(dtype)}, which has no"):
        ClipReward(Pays(dtype), maximum=bound)


def test_a_scale_is_above_0():
    for scale in (0, -1.0, float("nan"), "2"):
        with pytest.raises(ConfigError, match="scale above 0"):
            RewardScale(Catch(), scale)


@pytest.mark.full
def test_evaluations_have_the_environments_own_rewards(tmp_path):
    """The bandit pays 1 for the right arm; config.json rebuilds the wrapper, and evaluations go without it."""
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=8, batch_size=4))
    plan = agentkit.ExperimentConfig(
        agent, "agentkit:bandit", 40, evaluation_period=20, evaluation_episodes=8, run_directory=tmp_path / "run"
    )
    agentkit.run(dataclasses.replace(plan, wrappers=[functools.partial(find("reward_scale"), scale=100.0)]))
    again = read_config(tmp_path / "run")
    assert [wrapper.keywords for wrapper in again.wrappers] == [{"scale": 100.0}]
    trained = np.genfromtxt(tmp_path / "run/logs/train.csv", delimiter=",", names=True)
    judged = np.genfromtxt(tmp_path / "run/logs/evaluation.csv", delimiter=",", names=True)
    recorded = record_episodes(tmp_path / "run", 8)
    assert set(trained["episode_return"]) == {0.0, 100.0}
    np.testing.assert_array_equal(trained["episode_raw_return"], trained["episode_return"] / 100)
    assert set(judged["episode_return_max"]) == {1.0}
    assert set(agentkit.evaluate(tmp_path / "run", 8)["episode_return"]) <= {0.0, 1.0}
    assert {float(episode.rewards.sum()) for episode in recorded.episodes} <= {0.0, 1.0}


def experiment_of(environment, *names, **settings):
    known = {
        "reward_scale": functools.partial(RewardScale, scale=100.0),
        "clip_reward": functools.partial(ClipReward, maximum=0.5),
    }
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,)))
    wrappers = [known.get(name) or find(name) for name in names]
    return agentkit.ExperimentConfig(agent, environment, 40, wrappers=wrappers, environment_settings=settings)


@pytest.mark.parametrize("changing", ["reward_scale", "clip_reward"])
def test_observations_of_rewards_are_the_same_in_evaluations(changing):
    """A reward that only training has is no observation, as the policy would not know it in an evaluation."""
    with pytest.raises(ConfigError, match=r"Put (RewardScale|ClipReward) after ObservationActionReward"):
        experiment_of("agentkit:bandit", changing, "one_hot", "observation_action_reward")
    plan = experiment_of("agentkit:bandit", "observation_action_reward", changing)
    seen = []
    for evaluation in (False, True):
        environment = plan.make_environment(0, evaluation=evaluation)
        environment.reset()
        seen.append(float(environment.step(np.int32(1)).observation.reward))
    assert seen == [1.0, 1.0]


def test_ataris_clipped_rewards_are_no_observations():
    """The factory clips inside of all wrappers, in training only."""
    with pytest.raises(ConfigError, match=r"--env-set clip_reward=False and --wrapper clip_reward after"):
        experiment_of("atari:Breakout", "observation_action_reward", "clip_reward")
    plan = experiment_of("atari:Breakout", "observation_action_reward", "clip_reward", clip_reward=False)
    assert len(plan.wrappers) == 2 and experiment_of("atari:Breakout", "clip_reward").wrappers
