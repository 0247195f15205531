"""Making environments by name."""

import numpy as np
import pytest

from agentkit import envs
from agentkit.envs import prefixes
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.catch import Catch
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.wrappers.frame_stack import FrameStack


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(prefixes, "_registered", {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("catch", "Expected 'prefix:name'"),
        ("HalfCheetah-v5", "Did you mean 'gymnasium:HalfCheetah-v5'"),
        ("gymnasum:CartPole-v1", "Did you mean 'gymnasium'"),
        ("gymnasium:", "Expected 'prefix:name'"),
        ("agentkit:cach", "Did you mean 'agentkit:catch'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UnknownNameError) as error:
        envs.make(name)
    assert message in str(error.value)


def test_unknown_settings_of_own_environments():
    with pytest.raises(UnknownNameError, match=r"'row'. Did you mean 'rows'. Known: columns, rows"):
        envs.make("agentkit:catch", row=3)
    assert envs.make("agentkit:catch", rows=3).observation_spec().shape == (3, 5)


@pytest.mark.parametrize("settings", [{"num_envs": 0}, {"seed": -1}, {"seed": 2**31}])
def test_impossible_settings(settings):
    with pytest.raises(ConfigError, match="expected"):
        envs.make("agentkit:catch", **settings)


def test_available_lists_what_can_be_made():
    for name in envs.available():
        if not name.endswith(":"):
            envs.make(name).reset()
    assert "gymnasium:" in envs.available()


def test_register(clean_registry):
    envs.register("mine", lambda name, seed, rows=4: Catch(rows=rows, columns=len(name), seed=seed))
    assert "mine:" in envs.available()
    environment = envs.make("mine:abc", seed=1, rows=6)
    assert environment.observation_spec().shape == (6, 3)
    assert environment.resumable
    for prefix in ("mine", "gymnasium", "agentkit", "agent_ids", "pettingzoo"):
        with pytest.raises(ConfigError, match="is taken"):
            envs.register(prefix, Catch)
    with pytest.raises(ConfigError, match="without a colon"):
        envs.register("a:b", Catch)


def test_a_factory_that_gives_a_batch_is_refused(clean_registry):
    envs.register("batches", lambda name, seed: BatchedEnvironment([Catch(), Catch()]))
    with pytest.raises(ConfigError, match="gave a batch of 2"):
        envs.make("batches:x")


def test_wrappers_go_inside_the_resumable_layer():
    environment = envs.make("agentkit:catch", wrappers=[lambda inner: FrameStack(inner, 2)])
    assert environment.resumable
    assert environment.observation_spec().shape == (10, 10)
    batch = envs.make("agentkit:catch", wrappers=[lambda inner: FrameStack(inner, 2)], num_envs=2)
    assert batch.resumable and batch.reset().observation.shape == (2, 10, 10)


def first_boards(environment):
    return np.stack([environment.reset().observation for _ in range(12)])


def test_seeds():
    one, same, other = (first_boards(envs.make("agentkit:catch", seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_environments_of_a_batch_differ():
    boards = first_boards(envs.make("agentkit:catch", seed=1, num_envs=2))
    assert (boards[:, 0] != boards[:, 1]).any()


def test_raw_is_the_simulator_alone():
    environment = envs.make("agentkit:catch", raw=True)
    assert type(environment) is Catch
    one, same = (first_boards(envs.make("agentkit:catch", seed=4, raw=True)) for _ in range(2))
    np.testing.assert_array_equal(one, same)
