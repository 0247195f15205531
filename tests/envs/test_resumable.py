"""Resuming in mid-episode."""

import dm_env
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.envs.base import Environment
from agentkit.envs.catch import Catch
from agentkit.envs.point_mass import PointMass
from agentkit.envs.resumable import ResumableEnvironment, episode_seed
from agentkit.errors import CheckpointError, ConfigError
from agentkit.testing.environment import EnvironmentContract, assert_same_timestep
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.step_limit import StepLimit
from tests.wrappers.running_mean import RunningMean


class Leaky(Environment):
    """Not deterministic: what happens depends on how many steps this object has ever taken."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def _start(self):
        return np.zeros(1, np.float32)

    def _advance(self, action):
        self.total += 1
        return np.full(1, self.total, np.float32), 0.0, False

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2, dtype=np.int32)


class TestStateful(EnvironmentContract):
    """Statistics that outlive episodes, and frames that do not."""

    num_steps = 50

    def make_environment(self):
        inner = StepLimit(FrameStack(RunningMean(PointMass()), 3), 13)
        return ResumableEnvironment(inner, seed=5)

    def test_reseed_repeats_the_episodes(self):
        """Statistics go on over episodes by intention: `reseed` does not forget them."""


def test_before_the_first_reset():
    environment = envs.make("agentkit:catch", seed=1)
    state = environment.save()
    expected = environment.reset()
    other = envs.make("agentkit:catch", seed=2)
    other.reset()
    assert other.restore(state) is None
    assert_same_timestep(other.reset(), expected)


def test_statistics_are_kept_before_the_first_reset():
    trained = RunningMean(PointMass())
    for _ in range(5):
        trained.reset()
    fresh = RunningMean(PointMass())
    other = ResumableEnvironment(fresh, seed=0)
    assert other.restore(ResumableEnvironment(trained, seed=0).save()) is None
    assert fresh.count == 5


def test_on_the_last_step_of_an_episode():
    environment, other = envs.make("agentkit:catch", seed=1), envs.make("agentkit:catch", seed=9)
    timestep = environment.reset()
    while not timestep.last():
        timestep = environment.step(2)
    assert_same_timestep(other.restore(environment.save()), timestep)
    for _ in range(12):
        assert_same_timestep(environment.step(0), other.step(0))


def test_the_callers_buffer_may_be_reused():
    environment = envs.make("agentkit:point_mass", seed=1)
    environment.reset()
    buffer = np.zeros(2, np.float32)
    for value in (0.5, -0.5, 1.0):
        buffer[:] = value
        environment.step(buffer)
    np.testing.assert_array_equal(environment.save()["actions"]["0"][:, 0], np.float32([0.5, -0.5, 1.0]))


def test_a_saved_state_does_not_change_afterwards():
    environment = ResumableEnvironment(RunningMean(PointMass()), seed=0)
    environment.reset()
    environment.step(np.zeros(2))
    environment.reset()
    state = environment.save()
    total = state["start"]["wrapper"]["sums"]["0"].copy()
    for _ in range(50):
        environment.step(np.ones(2))
    np.testing.assert_array_equal(state["start"]["wrapper"]["sums"]["0"], total)
    assert state["num_steps"] == 0


def test_a_nondeterministic_environment_is_found_out():
    environment = ResumableEnvironment(Leaky(), seed=0)
    environment.reset()
    environment.step(0)
    environment.reset()
    environment.step(0)
    with pytest.raises(CheckpointError, match=r"observation/0 was \[2\.\] when saved and is \[1\.\] now.* init_from"):
        ResumableEnvironment(Leaky(), seed=0).restore(environment.save())


def test_an_episode_that_ends_early_on_replay_is_found_out():
    environment = envs.make("agentkit:catch", rows=10)
    environment.reset()
    for _ in range(6):
        environment.step(0)
    with pytest.raises(CheckpointError, match="the episode ended after 3 of 6 actions"):
        envs.make("agentkit:catch", rows=4).restore(environment.save())


@pytest.mark.parametrize("part", ["seed", "episode", "actions", "last", "num_steps", "start"])
def test_a_state_that_lacks_a_part_is_refused(part):
    environment = envs.make("agentkit:catch")
    environment.reset()
    environment.step(0)
    state = environment.save()
    del state[part]
    with pytest.raises(CheckpointError, match="Expected the state of a ResumableEnvironment"):
        environment.restore(state)


def test_a_state_of_another_environment_is_refused():
    environment = envs.make("agentkit:point_mass")
    environment.reset()
    environment.step(np.zeros(2))
    with pytest.raises(CheckpointError, match=r"actions of shape \[1, 2\] for 1 steps"):
        envs.make("agentkit:catch").restore(environment.save())


def test_other_wrappers_than_when_saved_are_refused():
    plain = ResumableEnvironment(PointMass(), seed=0)
    wrapped = ResumableEnvironment(RunningMean(PointMass()), seed=0)
    for environment in (plain, wrapped):
        environment.reset()
    with pytest.raises(CheckpointError, match="same wrappers"):
        wrapped.restore(plain.save())
    with pytest.raises(CheckpointError, match="same wrappers"):
        plain.restore(wrapped.save())


def test_what_cannot_be_made_resumable_is_refused_when_built():
    class Bare(dm_env.Environment):
        def reset(self): ...
        def step(self, action): ...
        def observation_spec(self): ...
        def action_spec(self): ...

    with pytest.raises(ConfigError, match=r"has no reseed\(seed\)"):
        ResumableEnvironment(Bare())
    with pytest.raises(ConfigError, match="resumable already"):
        ResumableEnvironment(FrameStack(envs.make("agentkit:catch"), 2))


def test_a_wrapper_outside_says_so_when_saved():
    environment = FrameStack(envs.make("agentkit:catch"), 2)
    environment.reset()
    assert not environment.resumable
    with pytest.raises(CheckpointError, match=r"envs.make\(name, wrappers=\[FrameStack\]\)"):
        environment.save()


def test_episode_seeds_differ_and_fit_31_bits():
    seeds = [episode_seed(seed, episode) for seed in (0, 1, 2**31 - 1) for episode in range(300)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_restore_keeps_the_sequence_of_episodes_of_the_saved_one():
    environment = ResumableEnvironment(Catch(), seed=3)
    for _ in range(5):
        environment.reset()
    other = ResumableEnvironment(Catch(), seed=77)
    other.restore(environment.save())
    for _ in range(200):
        assert_same_timestep(environment.reset(), other.reset())


def test_an_episode_that_goes_on_and_on_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its actions is kept."""
    monkeypatch.setattr("agentkit.envs.resumable.LONG_EPISODE", 5)
    environment = ResumableEnvironment(Leaky())
    environment.reset()
    with pytest.warns(UserWarning, match="An episode has gone on for .* each of its actions is kept") as told:
        for _ in range(12):
            environment.step(np.int32(0))
    assert len(told) == 1
