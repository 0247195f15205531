"""The dm_control adapter."""

import logging

import numpy as np
import pytest

pytest.importorskip("dm_control")

from agentkit import envs
from agentkit.errors import UnknownNameError
from agentkit.testing.environment import EnvironmentContract


@pytest.mark.parametrize("name", ["cheetah/run", "reacher/easy"])
class TestDMControl(EnvironmentContract):
    num_steps = 80

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        # 0.01 s per step of cheetah, 0.02 s of reacher: episodes of 40 and 20 steps.
        return envs.make(f"dm_control:{self.name}", seed=7, task_kwargs={"time_limit": 0.4})


class TestRaw(EnvironmentContract):
    can_resume = False
    num_steps = 40

    def make_environment(self):
        return envs.make("dm_control:cheetah/run", seed=7, raw=True)


def test_ready_for_agents():
    environment = envs.make("dm_control:cheetah/run", seed=0)
    raw = envs.make("dm_control:cheetah/run", seed=0, raw=True)
    assert environment.observation_spec().shape == (17,)
    assert environment.observation_spec().dtype == environment.action_spec().dtype == np.float32
    raw.reseed(3)
    environment.environment.reseed(3)
    expected = raw.reset().observation
    expected = np.concatenate([expected["position"], expected["velocity"]]).astype(np.float32)
    np.testing.assert_array_equal(environment.environment.reset().observation, expected)


def test_the_time_limit_is_a_truncation():
    environment = envs.make("dm_control:cheetah/run", task_kwargs={"time_limit": 0.05})
    timestep = environment.reset()
    while not timestep.last():
        timestep = environment.step(np.zeros(6, np.float32))
    assert timestep.discount == 1.0


def test_loading_says_nothing_of_what_is_deprecated_in_the_suites_models(caplog):
    envs.make("dm_control:cheetah/run")
    assert not caplog.records
    logging.getLogger("absl").warning("of yours, which is deprecated")
    assert "of yours" in caplog.text


def test_unknown_tasks_get_the_nearest_match():
    with pytest.raises(UnknownNameError, match="Did you mean 'cheetah/run'"):
        envs.make("dm_control:chetah/run")
