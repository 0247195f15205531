"""Environments that are handed in: classes, instances and functions become what a name would have given."""

import functools
import threading

import gymnasium
import numpy as np
import pytest

from agentkit import specs
from agentkit.agents import dqn
from agentkit.envs import given, make
from agentkit.envs.catch import Catch
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import ExperimentConfig
from tests.envs import handed_in

THERMOSTATS = {
    "class": (handed_in.Thermostat, {"target": 21.0}),
    "function": (handed_in.make, {"target": 21.0}),
    "seeded function": (handed_in.make_seeded, {"target": 21.0}),
    "partial": (functools.partial(handed_in.make, 21.0), {}),
    "lambda": (lambda: handed_in.Thermostat(21.0), {}),
    "lambda of the seed": (lambda number: handed_in.Thermostat(21.0), {}),
    "instance": (handed_in.Thermostat(21.0), {}),
    "wrapped instance": (gymnasium.wrappers.TimeLimit(handed_in.Thermostat(21.0), 100), {}),
}


def experiment(environment, settings=None, **others):
    return ExperimentConfig(dqn.make_agent(), environment, 10, environment_settings=settings or {}, **others)


def episode(environment, action, num_steps=5):
    return [environment.reset(), *(environment.step(action) for _ in range(num_steps))]


@pytest.mark.parametrize("kind", THERMOSTATS)
def test_all_kinds_are_the_environment_that_its_registered_name_is(kind):
    handed = experiment(*THERMOSTATS[kind]).make_environment(seed=3)
    gymnasium.register("HandedIn-v0", handed_in.Thermostat, disable_env_checker=True, order_enforce=False)
    try:
        named = make("gymnasium:HandedIn-v0", seed=3, target=21.0)
    finally:
        del gymnasium.registry["HandedIn-v0"]
    assert handed.observation_spec() == named.observation_spec()
    assert handed.observation_spec().dtype == np.float32
    assert handed.action_spec() == named.action_spec()
    assert handed.action_spec().minimum == -1
    assert handed.resumable
    action = np.array([0.4], np.float32)
    for one, other in zip(episode(handed, action), episode(named, action), strict=True):
        np.testing.assert_equal(one, other)


def test_made_by_envs_make_it_is_the_same():
    batch = make(handed_in.Thermostat, seed=3, num_envs=2, target=21.0)
    plan = experiment(handed_in.Thermostat, {"target": 21.0}, num_envs=2)
    np.testing.assert_equal(batch.reset(), plan.make_environment(3, 2).reset())
    assert batch.num_envs == 2 and batch.resumable


def test_a_function_is_given_its_seed():
    environment = experiment(handed_in.make_seeded).make_environment(seed=8)
    assert environment.gymnasium_environment.seed_given == 8


def test_an_instance_stays_untouched_and_every_copy_is_its_own():
    instance = handed_in.Thermostat()
    batch = experiment(instance, num_envs=2).make_environment(seed=0, num_envs=2)
    first = batch.reset().observation
    batch.step(np.zeros((2, 1), np.float32))
    assert instance.actions == []
    assert first[0] != first[1]


def test_an_instance_that_cannot_be_copied_is_used_alone_or_refused():
    instance = handed_in.Thermostat()
    instance.lock = threading.Lock()
    alone = experiment(instance, evaluation_period=0)
    assert alone.make_environment(seed=0).gymnasium_environment is instance
    for needs_two in (experiment(instance), experiment(instance, evaluation_period=0, num_envs=2)):
        with pytest.raises(ConfigError, match=r"cannot be copied .*Hand in the class, or a function"):
            needs_two.make_environment(0, needs_two.num_envs)


def test_what_is_ready_stays_as_it_is():
    assert type(experiment(handed_in.make_catch).make_environment(0).environment) is Catch
    assert type(experiment(Catch()).make_environment(0).environment) is Catch


def test_the_control_suites_own_environments():
    suite = pytest.importorskip("dm_control.suite")
    handed = experiment(functools.partial(suite.load, "cartpole", "balance")).make_environment(seed=1)
    named = make("dm_control:cartpole/balance", seed=1)
    assert handed.observation_spec() == named.observation_spec()
    np.testing.assert_equal(handed.reset(), named.reset())


@pytest.mark.parametrize(
    ("environment", "settings", "error", "message"),
    [
        (3, {}, ConfigError, "expected a name such as .*, a class, a function .* found 3"),
        (handed_in.Thermostat(), {"target": 1.0}, ConfigError, "target cannot be given to an instance of Thermostat"),
        (handed_in.Needy, {}, ConfigError, "Needy needs power: give --env-set power=VALUE"),
        (handed_in.make, {}, ConfigError, "make needs target"),
        (handed_in.Thermostat, {"targt": 1.0}, UnknownNameError, "'targt'. Did you mean 'target'"),
        (lambda: 3, {}, SpecError, "found int"),
        ("CartPole-v1", {}, UnknownNameError, "Did you mean 'gymnasium:CartPole-v1'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_refused(environment, settings, error, message):
    with pytest.raises(error, match=message):
        experiment(environment, settings).make_environment(0)


def test_import_paths():
    path = "tests.envs.handed_in"
    assert given.find(f"{path}:Thermostat") is handed_in.Thermostat
    assert given.find("gymnasium:CartPole-v1") == "gymnasium:CartPole-v1"  # A prefix goes before a module.
    assert (
        given.find("no_such_module:Thermostat") == "no_such_module:Thermostat"
    )  # `make` says which prefixes there are.
    with pytest.raises(UnknownNameError, match="Did you mean 'Thermostat'"):
        given.find(f"{path}:Thermstat")
    with pytest.raises(ConfigError, match="expected a class or function there, found 3"):
        given.find(f"{path}:NOTHING")


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_wide_integers_of_dm_env_are_narrowed_and_do_not_wrap_in_silence(dtype):
    class Wide(Catch):
        def _start(self):
            super()._start()
            return np.array([2**33], dtype)

        def observation_spec(self):
            return specs.Array((1,), dtype)

    environment = make(Wide)
    assert environment.observation_spec().dtype.itemsize == 4
    with pytest.raises(SpecError, match=f"found {2**33}, which does not fit"):
        environment.reset()
