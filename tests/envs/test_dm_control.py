"""The dm_control adapter."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dm_control")

from agentkit import envs
from agentkit.errors import ConfigError, UnknownNameError
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
        return envs.make("dm_control:cheetah/run", seed=7, raw=True, task_kwargs={"time_limit": 0.2})


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


def test_a_time_limit_of_no_seconds_is_refused():
    for limit in (-1, 0, float("nan"), "long"):
        with pytest.raises(ConfigError, match="time_limit: expected a number above 0, found"):
            envs.make("dm_control:cheetah/run", task_kwargs={"time_limit": limit})
    envs.make("dm_control:cheetah/run", task_kwargs={"time_limit": float("inf")})


def test_seeds_change_episodes_and_not_the_plant():
    """The suite draws the stiffness of lqr's joints when it makes the model."""

    def plant_and_start(seed, **task_kwargs):
        environment = envs.make("dm_control:lqr/lqr_2_1", seed=seed, raw=True, task_kwargs=task_kwargs)
        return environment.physics.model.jnt_stiffness.tolist(), environment.reset().observation["position"].tolist()

    plants, starts = zip(*(plant_and_start(seed) for seed in (0, 1, 2)), strict=True)
    assert plants[0] == plants[1] == plants[2] != plant_and_start(0, random=1)[0]
    assert len({*map(tuple, starts)}) == 3 and plant_and_start(1) == (plants[1], starts[1])


def test_a_task_that_draws_at_its_reset_needs_no_display_or_says_what_to_install():
    """In a process of its own: whether a GL library works depends on the machine."""
    code = """
from agentkit import envs
print(envs.make("dm_control:quadruped/escape").reset().first())
"""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
    assert last == "True" or ("MuJoCo cannot draw here" in last and "apt-get install libegl1" in last), done.stderr
