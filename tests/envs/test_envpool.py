"""The EnvPool adapter: the batch contract, and discounts at the ends of episodes."""

import numpy as np
import pytest

pytest.importorskip("envpool")

from agentkit import envs
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import BatchedEnvironmentContract


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
    with pytest.raises(ConfigError, match="batch_size: expected num_envs=4, found 2"):
        envs.make("envpool:CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(ConfigError, match="found a batch of 2"):
        ResumableEnvironment(envs.make("envpool:CartPole-v1", num_envs=2))
