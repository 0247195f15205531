"""Batches of environments."""

import dm_env
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.actors.random_actor import sample_action
from agentkit.envs.base import Environment
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.catch import Catch
from agentkit.envs.point_mass import PointMass
from agentkit.envs.resumable import ResumableEnvironment, episode_seed
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.specs import Array, DiscreteArray
from agentkit.testing.environment import BatchedEnvironmentContract
from tests.envs.odd import Plain


class Nested(Environment):
    """Dict observations, dict actions, a vector of rewards."""

    def _start(self):
        self._time = 0
        return {"a": np.zeros((2, 2), np.float32), "b": (np.int32(0),)}

    def _advance(self, action):
        self._time += int(action["go"]) + 1
        observation = {"a": np.full((2, 2), self._time, np.float32), "b": (np.int32(self._time),)}
        return observation, np.array([self._time, 1.0]), self._time > 4

    def observation_spec(self):
        return {"a": Array((2, 2), np.float32), "b": (Array((), np.int32),)}

    def action_spec(self):
        return {"go": DiscreteArray(2, dtype=np.int32), "move": Array((3,), np.float32)}

    def reward_spec(self):
        return Array((2,), np.float64)


class TestNestedBatch(BatchedEnvironmentContract):
    num_steps = 30

    def make_environment(self):
        return BatchedEnvironment([ResumableEnvironment(Nested(), seed) for seed in range(3)])


@pytest.mark.parametrize("name", ["gymnasium:Pendulum-v1", "gymnasium:CartPole-v1", "dm_control:cartpole/swingup"])
def test_a_batch_by_name_steps_as_the_single_environments_do(name):
    """Actions are clipped and mapped, precision and dicts are changed around the batch as around each."""
    singles = [envs.make(name, seed=episode_seed(3, i)) for i in range(2)]
    batch = envs.make(name, seed=3, num_envs=2)
    assert specs.make_environment_spec(batch) == specs.make_environment_spec(singles[0])
    expected, found = [single.reset() for single in singles], batch.reset()
    rng, saved = np.random.default_rng(0), None
    for step in range(300):
        for i, timestep in enumerate(expected):
            assert found.step_type[i] == timestep.step_type
            assert found.reward[i] == (timestep.reward if timestep.reward is not None else 0.0)
            np.testing.assert_array_equal(found.observation[i], timestep.observation)
        assert found.reward.dtype == found.discount.dtype == found.observation.dtype == np.float32
        if step == 230:
            saved = batch.save(), found
        actions = np.stack([sample_action(batch.action_spec(), rng) for _ in range(2)])
        if actions.dtype.kind == "f":
            actions *= 2.0  # Beyond the bounds, half of the time.
        expected = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        found = batch.step(actions)
    assert batch.resumable
    state, then = saved
    again = envs.make(name, seed=0, num_envs=2)
    now = again.restore(state)
    for a, b in zip(now, then, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert again.restore(envs.make(name, num_envs=2).save()) is None  # Saved before its first reset.
    for environment in (*singles, batch, again):
        environment.close()


def test_elements_are_the_single_environments():
    singles = [Catch(seed=seed) for seed in range(3)]
    batch = BatchedEnvironment([Catch(seed=seed) for seed in range(3)])
    expected = [single.reset() for single in singles]
    found = batch.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        for i, timestep in enumerate(expected):
            assert found.step_type[i] == timestep.step_type
            assert found.reward[i] == (timestep.reward or 0.0)
            assert found.discount[i] == (1.0 if timestep.first() else timestep.discount)
            np.testing.assert_array_equal(found.observation[i], timestep.observation)
        actions = rng.integers(3, size=3)
        expected = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        found = batch.step(actions)


class Counted(Plain):
    """Ends after some steps, and begins again where it is reset alone."""

    def __init__(self, length):
        super().__init__()
        self._episode_length = length

    def step(self, action):
        if self._last:
            return dm_env.termination(0.0, self.observe())
        timestep = super().step(action)
        self._last = self._length == self._episode_length
        return timestep._replace(step_type=dm_env.StepType.LAST if self._last else dm_env.StepType.MID)


def test_elements_need_not_reset_themselves():
    """An EnvironmentLoop resets a single one after its end, so it runs; in a batch an episode began with LAST."""
    batch = BatchedEnvironment([Counted(2), Counted(3)])
    found = [batch.reset(), *(batch.step(np.zeros(2, np.int32)) for _ in range(7))]
    np.testing.assert_array_equal([t.step_type for t in found[:4]], [[0, 0], [1, 1], [2, 1], [0, 2]])
    np.testing.assert_array_equal([t.step_type for t in found[4:]], [[1, 0], [2, 1], [0, 1], [1, 2]])
    assert batch.reset().step_type.tolist() == [0, 0] and batch.step(np.zeros(2, np.int32)).step_type.tolist() == [1, 1]


class Fails(Plain):
    """Raises once, at its second step or at its second reset."""

    def __init__(self, at):
        super().__init__()
        self._at, self._calls = at, []

    def reset(self):
        self._call("reset")
        return super().reset()

    def step(self, action):
        self._call("step")
        return super().step(action)

    def _call(self, name):
        self._calls.append(name)
        if name == self._at and self._calls.count(name) == 2:
            raise OSError("once")


@pytest.mark.parametrize(("at", "then"), [("step", [0, 1]), ("reset", [1, 1])])
def test_where_one_raises_those_before_it_are_known_to_have_moved(at, then):
    batch, actions = BatchedEnvironment([Counted(2), Fails(at)]), np.zeros(2, np.int32)
    batch.reset()
    batch.step(actions)
    if at == "reset":
        batch.step(actions)
    with pytest.raises(OSError, match="once"):
        batch.step(actions) if at == "step" else batch.reset()
    assert batch.failed == 1 and batch.step(actions).step_type.tolist() == then


def test_termination_and_truncation_are_kept_apart():
    for inner, discount in ((Catch(rows=4), 0.0), (PointMass(max_steps=3), 1.0)):
        batch = BatchedEnvironment([inner])
        batch.reset()
        actions = np.ones((1, *inner.action_spec().shape), np.int32)
        timesteps = [batch.step(actions) for _ in range(3)]
        assert timesteps[-1].step_type[0] == 2 and timesteps[-1].discount[0] == discount


def test_reseed_equals_making():
    made = envs.make("agentkit:catch", seed=5, num_envs=3)
    reseeded = envs.make("agentkit:catch", seed=6, num_envs=3)
    reseeded.reseed(5)
    for _ in range(5):
        np.testing.assert_array_equal(made.reset().observation, reseeded.reset().observation)


def test_refusals():
    with pytest.raises(ConfigError, match="at least one"):
        BatchedEnvironment([])
    with pytest.raises(ConfigError, match="Batch once"):
        BatchedEnvironment([BatchedEnvironment([Catch()])])
    with pytest.raises(SpecError, match="number 1 has"):
        BatchedEnvironment([Catch(), Catch(rows=4)])
    with pytest.raises(SpecError, match="Expected a dm_env environment"):
        BatchedEnvironment([object()])
    batch = BatchedEnvironment([Catch(), Catch()])
    batch.reset()
    with pytest.raises(SpecError, match=r"expected shape \[2\], found \[3\]"):
        batch.step(np.zeros(3, np.int32))
    with pytest.raises(CheckpointError, match="cannot be saved in mid-episode"):
        batch.save()
    three = envs.make("agentkit:catch", num_envs=3)
    with pytest.raises(CheckpointError, match="Expected the state of 3 environments"):
        three.restore(envs.make("agentkit:catch", num_envs=2).save())


def test_before_the_first_reset():
    batch = envs.make("agentkit:catch", num_envs=2)
    assert batch.restore(batch.save()) is None
