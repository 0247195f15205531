"""Brax, jumanji, navix and MuJoCo Playground, wherever one is installed (.ci/smoke has each)."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import ExperimentConfig, envs, run, specs
from agentkit.agents import registry
from agentkit.errors import SpecError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract
from agentkit.types import FIRST, LAST, MID

# These packages warn of one another, and brax of itself.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PACKAGES = {"playground": "mujoco_playground"}
NAMES = ["brax:inverted_pendulum", "jumanji:Snake-v1", "navix:Navix-Empty-5x5-v0", "playground:CartpoleBalance"]


@pytest.fixture(autouse=True)
def _ranks_of_their_own():
    with jax.numpy_rank_promotion("allow"):  # Which the tests forbid to agentkit.
        yield


def make(name, seed=0, **settings):
    """Makes one whose package is installed."""
    prefix = name.partition(":")[0]
    package = PACKAGES.get(prefix, prefix)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return envs.make(name, seed=seed, **settings)


def follow(environment, action, most=600):
    steps = [environment.reset()]
    while not steps[-1].last() and len(steps) < most:
        steps.append(environment.step(action))
    return steps


@pytest.mark.parametrize("name", NAMES)
class TestContract(EnvironmentContract):
    num_steps = 30

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return make(self.name, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_steps_many_of_them_without_a_change_of_form(name):
    environment = make(name)
    own = environment.jax_environment
    assert specs.make_environment_spec(own) == specs.make_environment_spec(environment)
    action = jnp.zeros((3, *own.action_spec().shape), own.action_spec().dtype)

    def move(state, key):
        return jax.vmap(own.step)(state, action, jax.random.split(key, 3))

    state, first = jax.vmap(own.reset)(jax.random.split(jax.random.PRNGKey(0), 3))
    _, steps = jax.jit(lambda state: jax.lax.scan(move, state, jax.random.split(jax.random.PRNGKey(1), 4)))(state)
    assert set(np.asarray(first.step_type)) == {FIRST} and set(np.asarray(steps.step_type).flat) <= {MID, LAST}
    assert np.isfinite(np.asarray(steps.reward)).all()


def test_braxs_fall_is_a_termination_and_its_time_limit_a_truncation():
    steps = follow(make("brax:inverted_pendulum", seed=1), np.zeros(1, np.float32))
    assert steps[-1].discount == 0.0 and len(steps) < 200 and {float(step.reward) for step in steps[1:]} == {1.0}
    assert abs(steps[-1].observation[1]) > 0.2 >= abs(steps[-2].observation[1])  # No reset's: these are 0.01.
    short = follow(make("brax:inverted_pendulum", seed=1, episode_length=5), np.zeros(1, np.float32))
    assert len(short) == 6 and short[-1].discount == 1.0
    np.testing.assert_array_equal(short[-1].observation, steps[5].observation)


def test_jumanjis_mask_is_where_networks_look_for_it_and_a_wall_ends_the_episode():
    environment = make("jumanji:Snake-v1", seed=1)
    assert environment.observation_spec()["action_mask"].shape == (4,) and environment.action_spec().num_values == 4
    steps = follow(environment, np.int32(0))
    assert steps[-1].discount == 0.0 and steps[0].observation["action_mask"].any()
    assert len(steps) <= 14, "a board of 12 rows has a wall"
    cut = follow(make("jumanji:Maze-v0", seed=1, time_limit=3), np.int32(0))
    assert len(cut) == 4 and cut[-1].step_type == LAST


def test_navixs_limit_is_a_truncation_and_its_goal_a_termination():
    left = np.int32(0)
    steps = follow(make("navix:Navix-Empty-5x5-v0", max_steps=6), left)
    assert len(steps) == 7 and steps[-1].discount == 1.0 and steps[-1].reward == 0.0
    environment = make("navix:Navix-Empty-5x5-v0", seed=0)
    forward, right = np.int32(2), np.int32(1)
    environment.reset()
    walked = [environment.step(action) for action in (forward, forward, right, forward, forward)]
    assert walked[-1].last() and walked[-1].discount == 0.0 and walked[-1].reward > 0.0


def test_playgrounds_limit_is_a_truncation():
    steps = follow(make("playground:CartpoleBalance", episode_length=4), np.zeros(1, np.float32))
    assert len(steps) == 5 and steps[-1].discount == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_what_there_is_not_is_refused_with_the_nearest(name):
    make(name)
    with pytest.raises(UnknownNameError, match=name):
        make(name + "x")
    with pytest.raises(UnknownNameError, match="no_such_setting"):
        make(name, no_such_setting=1)


def test_several_agents_are_refused():
    with pytest.raises(SpecError, match="one reward"):
        make("jumanji:LevelBasedForaging-v0")


@pytest.mark.parametrize("name", ["brax:inverted_pendulum", "jumanji:Snake-v1", "navix:Navix-Empty-5x5-v0"])
def test_ppo_trains_on_the_device(name):
    make(name)
    agent = registry.make("ppo", {"hidden_sizes": (8,), "segment_length": 8, "num_minibatches": 1})
    result = run(ExperimentConfig(agent, name, 128, num_envs=8, on_device=True, evaluation_period=0))
    assert result.steps >= 128 and result.updates >= 2  # A reset is a row of a segment, and no step.
