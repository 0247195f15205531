"""The interface that brax and MuJoCo Playground share, by an environment of a few lines."""

import copy
import dataclasses
import functools
import importlib
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs
from agentkit.envs.jax.dm_environment import CompiledSteps, DmEnvironment
from agentkit.envs.jax.foreign import BraxInterface, Settings, keywords_of
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract


class State(NamedTuple):
    place: jax.Array
    obs: Any
    reward: Any
    done: Any


class Walk:
    """Ends beyond 2; a critic may know the square of the place. A reset's numbers are Python's, as some of brax's."""

    action_size = 1

    def __init__(self, step: float):
        self.step_size = step

    def _at(self, place, reward, done):
        seen = {"state": place[None], "privileged_state": jnp.stack([place, place**2])}
        return State(place, seen, reward, done)

    def reset(self, key):
        return self._at(jax.random.uniform(key), 0, 0)

    def step(self, state, action):
        place = state.place + self.step_size * action[0]
        return self._at(place, place, jnp.where(place > 2, 1.0, 0.0))

    def render(self, states):
        return [np.full((2, 2, 3), states[0].place)]


def make(seed: int = 0, episode_length: int = 6, observed: str | None = "state", step: float = 0.5) -> DmEnvironment:
    return DmEnvironment(BraxInterface(Walk, (step,), episode_length, observed), seed)


class TestContract(EnvironmentContract):
    num_steps = 30

    def make_environment(self):
        return envs.make(make, seed=3)


def follow(environment, action):
    steps = [environment.reset()]
    while not steps[-1].last():
        steps.append(environment.step(np.array([action], np.float32)))
    return steps


def test_what_is_done_is_a_termination_with_its_own_observation_and_a_limit_a_truncation():
    *before, last = follow(make(), 1.0)
    assert last.discount == 0.0 and last.observation[0] > 2 >= before[-1].observation[0] and last.reward > 2
    short = follow(make(), 0.1)
    assert len(short) == 7 and short[-1].discount == 1.0 and all(step.discount == 1.0 for step in short[1:])
    at_once = follow(make(episode_length=len(before)), 1.0)
    assert at_once[-1].discount == 0.0, "both at one step are a termination"


@pytest.mark.parametrize("length", [0, -1, 2.5, True])
def test_an_episode_of_no_steps_is_refused(playground, length):
    for named in (make, functools.partial(playground, "Walk")):
        with pytest.raises(ConfigError, match="episode_length: expected a whole number of at least 1, found"):
            named(episode_length=length)


def test_one_observation_of_several_is_given_or_all():
    assert make().reset().observation.shape == (1,)
    everything = make(observed=None)
    place, square = everything.reset().observation["privileged_state"]
    assert set(everything.observation_spec()) == {"state", "privileged_state"} and square == pytest.approx(place**2)
    assert everything.render().shape == (2, 2, 3)


def test_equal_ones_are_compiled_once():
    one, equal, other = (CompiledSteps(each.jax_environment).step for each in (make(), make(seed=1), make(step=0.2)))
    assert one is equal is not other


@dataclasses.dataclass
class OfArrays:
    """Has no hash, and says of two whether they are equal by arrays."""

    numbers: Any


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0.2, 1.0], [0.2, 2.0]),
        ({"scales": {"pose": 1.0, "energy": [2]}}, {"scales": {"pose": 1.0, "energy": [3]}}),
        (jnp.arange(3), jnp.arange(3.0)),
        (OfArrays(np.arange(3)), OfArrays(np.arange(4))),
        ("spring", "mjx"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_without_a_hash_are_compared_and_given_as_they_are(one, other):
    first, second = Settings({"x": one, "y": 1}), Settings({"y": 1, "x": copy.deepcopy(one)})
    assert first == second and hash(first) == hash(second) and first.values["x"] is one
    assert first != Settings({"x": other, "y": 1}) and first != Settings({"x": one, "y": True})


def test_a_setting_that_cannot_be_compared_is_refused_in_a_line():
    with pytest.raises(ConfigError, match="The environment's setting x is of bytearray, which has no hash") as error:
        Settings({"x": [bytearray()]})
    assert "\n" not in str(error.value)


class Playground(Walk):
    """Is a stand-in for an environment of MuJoCo Playground's, which takes its settings so."""

    def __init__(self, config, overrides):
        config.lock()
        config.update_from_flattened_dict(overrides)
        self.config = config
        super().__init__(config.reward_config.scales.pose)


@pytest.fixture
def playground(monkeypatch):
    """Returns `make` of the adapter, of a Playground with one environment."""
    create = pytest.importorskip("ml_collections").config_dict.create

    def get_default_config(name):
        scales = create(pose=0.5, energy=-0.1)
        return create(episode_length=6, action_repeat=1, reward_config=create(scales=scales, sigma=0.25))

    registry = types.SimpleNamespace(
        ALL_ENVS=("Walk",),
        get_default_config=get_default_config,
        load=lambda name, config_overrides: Playground(get_default_config(name), config_overrides),
    )
    package = types.ModuleType("mujoco_playground")
    package.registry = registry
    monkeypatch.setitem(sys.modules, "mujoco_playground", package)
    monkeypatch.delitem(sys.modules, "agentkit.envs.jax.playground", raising=False)
    yield importlib.import_module("agentkit.envs.jax.playground").make
    sys.modules.pop("agentkit.envs.jax.playground")


@pytest.mark.parametrize("given", [{"reward_config.scales.pose": 3.0}, {"reward_config": {"scales": {"pose": 3.0}}}])
def test_playgrounds_configs_in_configs_take_names_with_dots_and_dicts(playground, given):
    made = playground("Walk", **given)
    config = made.jax_environment._made.config
    assert config.reward_config.scales.to_dict() == {"pose": 3.0, "energy": -0.1} and config.reward_config.sigma == 0.25
    assert made.jax_environment == playground("Walk", **given).jax_environment != playground("Walk").jax_environment
    with pytest.raises(
        UnknownNameError, match=r"'reward_config.scales.poes'. Did you mean 'reward_config.scales.pose'"
    ):
        playground("Walk", **{"reward_config.scales.poes": 1.0})
    with pytest.raises(UnknownNameError, match=r"'reward_config.scales'. Did you mean 'reward_config.scales.pose'"):
        playground("Walk", reward_config={"scales": {}})  # Which would change nothing.


def test_playgrounds_repeated_actions_are_refused_in_a_line(playground):
    playground("Walk", action_repeat=1)
    with pytest.raises(ConfigError, match="playground:Walk: action_repeat=2 would change nothing") as error:
        playground("Walk", action_repeat=2)
    assert "\n" not in str(error.value)


def test_unknown_names_and_settings_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="brax:ant"):
        check_known("brax", "amt", ["ant", "hopper"])
    assert keywords_of(Walk.__init__, lambda *args, size=1, **more: None) == ["step", "size"]
    with pytest.raises(UnknownNameError, match="step"):
        check_settings("brax:walk", ["stepp"], keywords_of(Walk.__init__))
    with pytest.raises(UnknownNameError, match="'privileged_state'"):
        make(observed="priviledged_state").observation_spec()
