"""Gymnax, where 1.0 is installed: it wants an older gymnasium than box2d's extra does (.ci/smoke has both)."""

import jax
import numpy as np
import pytest

if not hasattr(pytest.importorskip("gymnax.environments.environment").Environment, "is_truncated"):
    pytest.skip("gymnax is older than 1.0", allow_module_level=True)

from agentkit import ExperimentConfig, envs, run, specs
from agentkit.agents import registry
from agentkit.envs.jax import gymnax as adapter
from agentkit.envs.jax.foreign import Settings
from agentkit.envs.jax.gymnax import Gymnax
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract
from agentkit.types import FIRST, LAST, MID


@pytest.fixture(autouse=True)
def _ranks_of_their_own():
    with jax.numpy_rank_promotion("allow"):  # Which the tests forbid to agentkit.
        yield


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite"])
class TestGymnax(EnvironmentContract):
    num_steps = 60

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name, self.sees_ends = name, name != "Pendulum-v1"  # Whose episodes have 200 steps.

    def make_environment(self):
        return envs.make(f"gymnax:{self.name}", seed=3)


@pytest.mark.full
def test_all_of_them_have_the_loops_specs_and_steps_of_one_form():
    offline = set(adapter.gymnax.registered_envs) - {"MNISTBandit-bsuite"}  # Which downloads a data set.
    assert len(offline) > 20
    for name in offline:
        environment = envs.make(f"gymnax:{name}")
        own = environment.jax_environment
        assert specs.make_environment_spec(own) == specs.make_environment_spec(environment), name
        key, action = jax.random.PRNGKey(0), np.zeros(own.action_spec().shape, own.action_spec().dtype)
        first = jax.eval_shape(own.reset, key)
        forms = [jax.tree.map(lambda x: (x.shape, x.dtype), each)
                 for each in (first, jax.eval_shape(own.step, first[0], action, key))]  # fmt: skip
        assert forms[0] == forms[1], name


def follow(environment, action, most=600):
    steps = [environment.reset()]
    while not steps[-1].last() and len(steps) < most:
        steps.append(environment.step(action))
    return steps


def test_a_fall_is_a_termination_with_its_own_observation():
    steps = follow(envs.make("gymnax:CartPole-v1", seed=1), np.int32(1))
    assert [step.step_type for step in steps[:2]] == [FIRST, MID] and steps[-1].discount == 0.0
    assert {float(step.reward) for step in steps[1:]} == {1.0} and len(steps) < 15
    assert abs(steps[-1].observation[2]) > 12 * np.pi / 180 > abs(steps[-2].observation[2])  # No reset's: these are 0.


def test_the_end_of_the_time_is_a_truncation_with_its_own_observation():
    environment = envs.make("gymnax:Pendulum-v1", seed=1, max_steps_in_episode=7)
    steps = follow(environment, np.ones(1, np.float32))
    assert len(steps) == 8 and steps[-1].step_type == LAST and steps[-1].discount == 1.0
    longer = follow(envs.make("gymnax:Pendulum-v1", seed=1), np.ones(1, np.float32))
    np.testing.assert_array_equal(steps[-1].observation, longer[7].observation)
    assert environment.step(np.ones(1, np.float32)).first()
    # Action 1 is a torque of 2: in 0.05 s it adds 3 * 2 * 0.05 to the speed, and gravity 15 sin(angle) * 0.05.
    _, sin, speed = longer[0].observation
    assert longer[1].observation[2] == pytest.approx(speed + 0.05 * (15 * sin + 3 * 2), abs=1e-4)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_time_limit_of_no_steps_is_refused(limit):
    with pytest.raises(ConfigError, match="max_steps_in_episode: expected a whole number of at least 1, found"):
        envs.make("gymnax:CartPole-v1", max_steps_in_episode=limit)


def test_settings_go_to_the_class_or_to_its_parameters():
    assert Gymnax("Breakout-MinAtar", Settings({"use_minimal_action_set": False})).action_spec().num_values == 6
    assert Gymnax("Breakout-MinAtar").action_spec().num_values == 3
    with pytest.raises(UnknownNameError, match=r"'gymnax:Breakout-MinAtr'. Did you mean 'gymnax:Breakout-MinAtar'"):
        envs.make("gymnax:Breakout-MinAtr")
    with pytest.raises(UnknownNameError, match=r"'max_steps'. Did you mean 'max_steps_in_episode'"):
        envs.make("gymnax:CartPole-v1", max_steps=3)


def test_an_older_gymnax_is_refused(monkeypatch):
    monkeypatch.delattr("gymnax.environments.environment.Environment.is_truncated")
    with pytest.raises(ConfigError, match=r"Expected gymnax 1\.0 or newer"):
        envs.make("gymnax:CartPole-v1")


def test_an_agent_is_trained_on_the_device(tmp_path):
    agent = registry.make("a2c", {"hidden_sizes": (4,), "segment_length": 5})
    result = run(ExperimentConfig(agent, "gymnax:CartPole-v1", 200, num_envs=4, on_device=True, evaluation_period=100))
    assert result.steps >= 200 and all(row["episode_return"] >= 8 for row in result.evaluations)
