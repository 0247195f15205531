"""agentkit's own environments: the contract, their optimal returns, what they refuse."""

import numpy as np
import pytest

from agentkit import envs
from agentkit.errors import ConfigError
from agentkit.testing.environment import BatchedEnvironmentContract, EnvironmentContract

NAMES = ["bandit", "bit_flip", "catch", "deep_sea", "memory_chain", "point_mass"]


@pytest.mark.parametrize("name", NAMES)
class TestOwnEnvironments(EnvironmentContract):
    num_steps = 60

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"agentkit:{self.name}", seed=3)


@pytest.mark.parametrize("name", NAMES)
class TestOwnBatches(BatchedEnvironmentContract):
    num_steps = 40

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"agentkit:{self.name}", seed=3, num_envs=3)


def mean_return(environment, policy, num_episodes):
    total = 0.0
    for _ in range(num_episodes):
        timestep = environment.reset()
        first = timestep.observation
        while not timestep.last():
            timestep = environment.step(policy(timestep.observation, first))
            total += float(timestep.reward)
    return total / num_episodes


def catch_policy(observation, first):
    del first
    ball = int(observation[:-1].any(axis=0).argmax())
    return 1 + int(np.sign(ball - int(observation[-1].argmax())))


def bit_flip_policy(observation, first):
    del first
    return int((observation["observation"] != observation["desired_goal"]).argmax())


@pytest.mark.parametrize(
    ("name", "policy", "expected"),
    [
        ("bandit", lambda o, f: int(o.argmax()), 1.0),
        ("bit_flip", bit_flip_policy, -3.016),
        ("catch", catch_policy, 1.0),
        ("deep_sea", lambda o, f: 1, 0.99),
        ("memory_chain", lambda o, f: int(f[0] > 0), 1.0),
        ("point_mass", lambda o, f: np.clip(-o / 0.25, -1, 1), -0.53),
    ],
)
def test_optimal_policy_has_the_documented_return(name, policy, expected):
    environment = envs.make(f"agentkit:{name}", seed=0)
    many, tolerance = {"point_mass": (2000, 0.03), "bit_flip": (4000, 0.1)}.get(name, (20, 1e-5))
    assert mean_return(environment, policy, many) == pytest.approx(expected, abs=tolerance)


def test_point_mass_is_truncated_and_catch_terminates():
    for name, discount in (("point_mass", 1.0), ("catch", 0.0), ("deep_sea", 0.0), ("memory_chain", 0.0)):
        environment = envs.make(f"agentkit:{name}")
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(np.zeros(environment.action_spec().shape, np.int32))
        assert timestep.discount == discount, name


def test_bit_flip_terminates_at_the_goal_and_is_truncated_elsewhere():
    environment = envs.make("agentkit:bit_flip", num_bits=6)
    for policy, rewards, discount in ((bit_flip_policy, {0.0}, 0.0), (lambda o, f: 0, {-1.0, 0.0}, None)):
        for _ in range(30):
            timestep = environment.reset()
            goal, steps = timestep.observation["desired_goal"].copy(), 0
            while not timestep.last():
                before = timestep.observation["observation"].copy()
                action = policy(timestep.observation, None)
                timestep = environment.step(action)
                steps += 1
                changed = np.flatnonzero(timestep.observation["observation"] != before)
                np.testing.assert_array_equal(changed, [action])
                np.testing.assert_array_equal(timestep.observation["desired_goal"], goal)
                there = np.array_equal(timestep.observation["achieved_goal"], goal)
                assert timestep.reward == (0.0 if there else -1.0) and timestep.last() == (there or steps == 6)
            assert timestep.reward in rewards and timestep.discount == float(not there)
            assert discount in (None, timestep.discount)


@pytest.mark.parametrize("name", ["bandit", "bit_flip", "catch", "deep_sea", "memory_chain"])
def test_actions_out_of_range_are_refused(name):
    environment = envs.make(f"agentkit:{name}")
    environment.reset()
    with pytest.raises(ValueError, match=r"Expected an action in 0\.\."):
        environment.step(17)


def test_point_mass_refuses_an_action_of_another_shape():
    environment = envs.make("agentkit:point_mass", raw=True)
    environment.reset()
    with pytest.raises(ValueError, match=r"shape \(2,\), found \(3,\)"):
        environment.step(np.zeros(3))


def test_deep_sea_with_random_actions_keeps_its_mapping_over_episodes_and_seeds():
    first = envs.make("agentkit:deep_sea", seed=0, randomize_actions=True)
    second = envs.make("agentkit:deep_sea", seed=1, randomize_actions=True)
    rewards = []
    for environment in (first, second):
        for _ in range(3):
            environment.reset()
            rewards.append([float(environment.step(1).reward) for _ in range(8)])
    assert all(episode == rewards[0] for episode in rewards)
    assert len(set(rewards[0])) > 1  # 1 is right in some cells only.


@pytest.mark.parametrize("name", ["bit_flip", "catch", "deep_sea", "memory_chain", "point_mass"])
def test_renders_a_small_image(name):
    environment = envs.make(f"agentkit:{name}")
    environment.reset()
    image = environment.render()
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[-1] == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-3, 0, 10**20, float("nan")])
def test_sizes_that_are_none_are_refused_where_it_is_made(name, value):
    for setting, kind in envs.prefixes.settings_of(f"agentkit:{name}").items():
        if kind is int and setting != "mapping_seed":
            with pytest.raises(ConfigError, match=rf"^{setting} must be a whole number from [12] to 10,000, found "):
                envs.make(f"agentkit:{name}", seed=0, **{setting: value})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("point_mass", {"speed": -1}),
        ("point_mass", {"speed": 0}),
        ("point_mass", {"speed": float("nan")}),
        ("point_mass", {"speed": float("inf")}),
        ("point_mass", {"speed": "fast"}),
        ("deep_sea", {"randomize_actions": True, "mapping_seed": -1}),
        ("deep_sea", {"mapping_seed": 0.5}),
    ],
)
def test_settings_out_of_range_are_refused_where_it_is_made(name, settings):
    with pytest.raises(ConfigError, match=r"^(speed|mapping_seed): expected .* found "):
        envs.make(f"agentkit:{name}", **settings)
