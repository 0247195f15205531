"""The EnvPool adapter: the batch contract, and discounts at the ends of episodes."""

import dataclasses
import functools
import unittest.mock

import numpy as np
import pytest

pytest.importorskip("envpool")

from agentkit import envs
from agentkit.agents import registry
from agentkit.environment_loop import ReadyEnvironmentLoop
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.experiment import ExperimentConfig, run
from agentkit.testing.environment import BatchedEnvironmentContract
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.reward_scale import RewardScale


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4", "CheetahRun-v1", "FrozenLake-v1"])
class TestEnvPool(BatchedEnvironmentContract):
    can_reseed = False
    can_resume = False

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"envpool:{self.name}", seed=7, num_envs=3, max_episode_steps=40)


def last_discounts(environment, num_steps):
    """The discounts of the LAST steps, and the number of steps before the first of them."""
    environment.reset()
    spec = environment.action_spec()
    found, first = [], None
    for number in range(1, num_steps + 1):
        timestep = environment.step(np.zeros((environment.num_envs, *spec.shape), spec.dtype))
        last = timestep.step_type == 2
        if last.any() and first is None:
            first = number
        found.extend(timestep.discount[last])
    return found, first


@pytest.mark.parametrize(
    ("name", "settings", "limit"),
    [
        ("Pendulum-v1", {}, 200),
        ("HalfCheetah-v4", {}, 1000),
        ("CartPole-v1", {"max_episode_steps": 5}, 5),
        ("CheetahRun-v1", {"max_episode_steps": 9}, 9),
    ],
)
def test_truncation_has_discount_one(name, settings, limit):
    found, first = last_discounts(envs.make(f"envpool:{name}", num_envs=2, **settings), limit)
    assert first == limit and found == [1.0, 1.0]


def test_termination_has_discount_zero():
    found, first = last_discounts(envs.make("envpool:CartPole-v1", num_envs=2), 30)
    assert first < 30 and set(found) == {0.0}


def test_a_step_before_reset_is_a_reset():
    environment = envs.make("envpool:CartPole-v1", num_envs=2)
    assert (environment.step(np.zeros(2, np.int32)).step_type == 0).all()


def test_ready_for_agents():
    environment = envs.make("envpool:HalfCheetah-v4", num_envs=2)
    assert environment.observation_spec().dtype == environment.action_spec().dtype == np.float32
    assert environment.num_envs == 2
    assert envs.make("envpool:CheetahRun-v1").observation_spec().shape == (17,)


def test_refusals():
    with pytest.raises(UnknownNameError, match="Did you mean 'HalfCheetah-v4'"):
        envs.make("envpool:HalfChetah-v4")
    with pytest.raises(ConfigError, match=r"refused the settings \['foo'\].*max_episode_steps"):
        envs.make("envpool:CartPole-v1", foo=1)
    with pytest.raises(ConfigError, match=r"batch_size: expected num_envs=4, found 2.*--ready 2"):
        envs.make("envpool:CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(ConfigError, match="found a batch of 2"):
        ResumableEnvironment(envs.make("envpool:CartPole-v1", num_envs=2))


def rounds(environment, count):
    """Yields what `recv` gave in so many rounds; environments of odd numbers always take 1, the others 0."""
    environment.async_reset()
    spec = environment.action_spec()
    for _ in range(count):
        numbers, timestep = environment.recv()
        yield numbers, timestep
        odd = (numbers % 2).reshape(-1, *[1] * len(spec.shape))
        environment.send(np.broadcast_to(odd, (len(numbers), *spec.shape)).astype(spec.dtype), numbers)


def test_returns_before_the_change_are_those_of_each_environment_and_not_of_its_slot():
    half = functools.partial(RewardScale, scale=0.5)
    settings = {"num_envs": 5, "ready": 2, "max_episode_steps": 20, "seed": 3}
    for wrappers in ([half], [half, ClipReward], []):
        environment = envs.make("envpool:Pendulum-v1", wrappers=wrappers, **settings)
        actor = unittest.mock.Mock()
        actor.select_action = lambda observation, numbers: np.zeros((len(numbers), 1), np.float32)
        records = ReadyEnvironmentLoop(environment, actor).run(num_episodes=10)
        environment.close()
        assert {record["episode_length"] for record in records} == {20}
        found = [record.get("episode_raw_return") for record in records]
        if not wrappers:
            assert set(found) == {None}
        elif wrappers == [half]:
            np.testing.assert_allclose(found, [2 * record["episode_return"] for record in records], rtol=1e-5)
        else:  # Clipped to 20 at most.
            assert min(found) < -50


def test_whoever_is_ready_has_the_episodes_that_it_has_in_step():
    num_envs, ready, seed = 5, 2, 3
    together = envs.make("envpool:CartPole-v1", seed=seed, num_envs=num_envs)
    expected = [together.reset()]
    expected += [together.step(np.arange(num_envs) % 2) for _ in range(600)]
    environment = envs.make("envpool:CartPole-v1", seed=seed, num_envs=num_envs, ready=ready)
    assert (environment.num_envs, environment.num_ready) == (num_envs, ready)
    counts = np.zeros(num_envs, int)
    for numbers, timestep in rounds(environment, 600):
        assert len(numbers) == ready and np.all(np.diff(numbers) > 0)
        for row, number in enumerate(numbers):
            for leaf, other in zip(timestep, expected[counts[number]], strict=True):
                np.testing.assert_array_equal(leaf[row], other[number])
            counts[number] += 1
        if counts.min() > 11:  # Episodes of 9 or 10 steps have ended in each.
            return
    raise AssertionError(f"an environment was passed over for long: {counts} steps")


def test_bounds_and_dtypes_are_those_of_a_pool_in_step():
    settings = {"seed": 1, "num_envs": 3, "max_episode_steps": 4}
    together = envs.make("envpool:Pendulum-v1", **settings)
    environment = envs.make("envpool:Pendulum-v1", **settings, ready=2)
    assert environment.action_spec() == together.action_spec() and environment.action_spec().maximum == 1
    steps = [timestep for _, timestep in rounds(environment, 12)]
    assert steps[0].observation.dtype == together.observation_spec().dtype == np.float32
    assert {int(t.step_type[0]) for t in steps} == {0, 1, 2}
    assert all(t.discount.min() == 1 for t in steps), "Pendulum's episodes are truncated only"


def test_an_asynchronous_pool_refuses_what_would_hang_or_mix_environments_up():
    environment = envs.make("envpool:CartPole-v1", num_envs=3, ready=2)
    environment.async_reset()
    numbers, _ = environment.recv()
    with pytest.raises(ConfigError, match="at least 2 environments at work, found 1"):
        environment.recv()
    with pytest.raises(ConfigError, match="Answer each recv"):
        environment.send(np.zeros(2, np.int32), (numbers + 1) % 3)
    with pytest.raises(ConfigError, match="Use send and recv"):
        environment.step(np.zeros(3, np.int32))
    with pytest.raises(ConfigError, match="Make it anew"):
        environment.async_reset()
    with pytest.raises(ConfigError, match="keep nothing from step to step, found RewardStack"):
        envs.make("envpool:CartPole-v1", num_envs=3, ready=2, wrappers=[RewardStack])
    for num_envs, ready, expected in ((3, 3, "expected 1 to 2 of num_envs=3, found 3"), (None, 1, "--num-envs N")):
        with pytest.raises(ConfigError, match=expected):
            envs.make("envpool:CartPole-v1", num_envs=num_envs, ready=ready)


class RewardStack(EnvironmentWrapper):
    """Says nothing of being stateless."""

    works_on_batches = True


@pytest.mark.full
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_agents_learn_from_whoever_is_ready(name, tmp_path):
    small = {"hidden_sizes": (8,)}
    few = {"min_replay_size": 20} if name == "dqn" else {"segment_length": 6, "num_minibatches": 1, "num_epochs": 1}
    experiment = ExperimentConfig(
        registry.make(name, small | few),
        "envpool:CartPole-v1",
        150,
        num_envs=4,
        ready=2,
        evaluation_period=0,
        run_directory=tmp_path / "run",
    )
    first = run(experiment)
    assert first.steps >= 150 and first.updates > 0
    again = run(dataclasses.replace(experiment, num_steps=250), resume=True)
    assert again.steps >= 250 and again.updates > first.updates


@pytest.mark.parametrize(("name", "own_limit"), [("Pendulum-v1", 200), ("CheetahRun-v1", 1000)])
def test_without_a_limit_episodes_go_on(name, own_limit):
    assert last_discounts(envs.make(f"envpool:{name}", max_episode_steps=-1), own_limit + 2) == ([], None)
    for impossible in (0, -2, 2.5, True):
        with pytest.raises(ConfigError, match="max_episode_steps: expected at least 1, or -1 for no limit, found"):
            envs.make(f"envpool:{name}", max_episode_steps=impossible)


@pytest.mark.parametrize("evaluation", [False, True])
def test_atari_is_evaluated_by_its_own_rewards_and_whole_games(evaluation):
    """The names are EnvPool's own; a task without them is given none."""
    settings = {"reward_clip": True, "episodic_life": True, "noop_max": 1}
    environment = envs.make("envpool:SpaceInvaders-v5", 3, evaluation=evaluation, raw=True, **settings)
    environment.reset()
    rewards, ended = set(), False
    for _ in range(250):  # Fires, and stays where the invaders aim.
        timestep = environment.step(np.ones(1, np.int32))
        rewards |= set(timestep.reward.tolist())
        ended = ended or timestep.step_type[0] == 2
    environment.close()
    assert ended != evaluation
    assert max(rewards) >= 5 if evaluation else rewards == {0.0, 1.0}
    envs.make("envpool:CartPole-v1", evaluation=evaluation).close()


def test_a_discount_that_envpool_does_not_tell_is_warned_of():
    with pytest.warns(UserWarning, match=r"zero_discount_on_life_loss=True does nothing.*atari:NAME with"):
        envs.make("envpool:Breakout-v5", zero_discount_on_life_loss=True).close()
    envs.make("envpool:Breakout-v5", zero_discount_on_life_loss=False).close()
