"""The bsuite adapter."""

import numpy as np
import pytest

pytest.importorskip("bsuite")

from agentkit import envs
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import BatchedEnvironmentContract, EnvironmentContract

# mnist is left out: it downloads its images.
IDS = [
    "bandit/0",
    "bandit_noise/1",
    "bandit_scale/1",
    "cartpole/0",
    "cartpole_noise/1",
    "cartpole_swingup/0",
    "catch/0",
    "catch_noise/1",
    "catch_scale/1",
    "deep_sea/0",
    "deep_sea_stochastic/0",
    "discounting_chain/0",
    "memory_len/3",
    "memory_size/3",
    "mountain_car/0",
    "mountain_car_noise/1",
    "umbrella_distract/0",
    "umbrella_length/0",
]


LONG = ("cartpole", "discounting_chain", "mountain_car")  # Episodes of 100 steps, and of 1,000.


@pytest.mark.parametrize("name", IDS)
class TestBsuite(EnvironmentContract):
    num_steps = 60

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name, self.sees_ends = name, not name.startswith(LONG)

    def make_environment(self):
        return envs.make(f"bsuite:{self.name}", seed=7)


class TestBatch(BatchedEnvironmentContract):
    def make_environment(self):
        return envs.make("bsuite:catch/0", seed=7, num_envs=2)


def test_observations_stay_as_they_are_and_actions_narrow():
    environment = envs.make("bsuite:catch/0")
    assert environment.observation_spec().shape == (10, 5)
    assert environment.action_spec().dtype == np.int32


def test_making_one_prints_nothing(capfd):
    envs.make("bsuite:catch/0")
    assert capfd.readouterr().out == ""


def test_refusals():
    with pytest.raises(UnknownNameError, match="Did you mean 'catch/0'"):
        envs.make("bsuite:cach/0")
    with pytest.raises(ConfigError, match=r"fixes its settings, found \['rows'\]"):
        envs.make("bsuite:catch/0", rows=3)
