"""Wrappers for training only, applied to recorded episodes."""

import functools
from typing import Any

import dm_env
import numpy as np
import pytest
import tree

from agentkit import datasets, envs
from agentkit.datasets.training_wrappers import as_in_training
from agentkit.errors import ConfigError
from agentkit.specs import make_environment_spec
from agentkit.wrappers.base import EnvironmentWrapper, ObservationWrapper
from agentkit.wrappers.clip_reward import ClipReward
from tests.agents import offline_data

EPISODES = offline_data.make_episodes(offline_data.CATCH, 6, [0.5])
NUM_STEPS = sum(len(episode.rewards) for episode in EPISODES)
SPEC = make_environment_spec(envs.make(offline_data.CATCH, seed=0))


class Running(EnvironmentWrapper):
    """Pays the number of its steps in training so far, and counts itself."""

    training_only = True
    made = 0

    def __init__(self, environment: Any):
        super().__init__(environment)
        type(self).made += 1
        self._count = 0

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        return self._environment.step(action)._replace(reward=float(self._count))


class Short(EnvironmentWrapper):
    """Ends each training episode after four steps, and changes what is seen."""

    training_only = True
    discount = 0.0

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        timestep = self._environment.step(action)._replace(observation=None)
        over = {"step_type": dm_env.StepType.LAST, "discount": self.discount}
        return timestep._replace(**over) if self._count == 4 else timestep


class ShortAndTruncated(Short):
    discount = 1.0


def test_statistics_of_a_wrapper_for_training_only_run_on_through_the_episodes() -> None:
    Running.made = 0
    found = as_in_training(EPISODES, SPEC, [Running])
    np.testing.assert_array_equal(np.concatenate([episode.rewards for episode in found]), np.arange(1, NUM_STEPS + 1))
    assert Running.made == 1
    for episode, expected in zip(found, EPISODES, strict=True):
        tree.map_structure(np.testing.assert_array_equal, episode[:2] + episode[3:], expected[:2] + expected[3:])


@pytest.mark.parametrize("wrapper", [Short, ShortAndTruncated])
def test_an_episode_is_cut_where_a_wrapper_ends_it(wrapper: Any) -> None:
    for episode, expected in zip(as_in_training(EPISODES, SPEC, [wrapper]), EPISODES, strict=True):
        ends = np.arange(4) == 3
        np.testing.assert_array_equal(episode.terminations, ends & (wrapper is Short))
        np.testing.assert_array_equal(episode.truncations, ends & (wrapper is not Short))
        expected = (expected.observations[:5], expected.actions[:4], expected.rewards[:4])
        tree.map_structure(np.testing.assert_array_equal, episode[:3], expected)


class ReadsTheSimulator(ObservationWrapper):
    training_only = True

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(reward=self._environment.physics.reward)


class StepsInReset(EnvironmentWrapper):
    training_only = True

    def reset(self) -> dm_env.TimeStep:
        super().reset()
        return self.step(0)


class Repeats(EnvironmentWrapper):
    training_only = True

    def step(self, action: Any) -> dm_env.TimeStep:
        super().step(action)
        return super().step(action)


class Gives(EnvironmentWrapper):
    """Gives each step of training something else."""

    training_only = True

    def __init__(self, environment: Any, **given: Any):
        super().__init__(environment)
        self._given = given

    def step(self, action: Any) -> dm_env.TimeStep:
        return super().step(action)._replace(**self._given)


def needs_more(environment: Any) -> Any:
    return environment.physics


needs_more.training_only = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (ReadsTheSimulator, "ReadsTheSimulator, for training only, cannot be applied to data: it raised AttributeErr"),
        (StepsInReset, "StepsInReset, .*: it takes steps or resets of its own"),
        (Repeats, "Repeats, .*: it takes steps or resets of its own"),
        (needs_more, "needs_more, .*: it raised AttributeError.*Leave it out, or give data"),
        (functools.partial(Gives, reward=None), "Gives, .*: expected each reward to be a finite number, found None"),
        (functools.partial(Gives, reward=np.inf), "Gives, .*: expected each reward to be a finite number, found inf"),
        (functools.partial(Gives, reward=np.zeros(2)), "each reward to be a finite number, found array"),
        (functools.partial(Gives, discount=0.9), "Gives, .*: expected discounts of 1, .*, found 0.9 at a step before"),
        (functools.partial(Gives, discount=0.0), "found 0.0 at a step before"),
        (functools.partial(Gives, discount=0.5, step_type=dm_env.StepType.LAST), "found 0.5 at its end"),
    ],
)
def test_what_cannot_be_applied_to_data_is_refused_by_name(wrapper: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_in_training(EPISODES, SPEC, [ClipReward, wrapper])


def test_steps_of_its_own_are_seen_at_an_episodes_end_too() -> None:
    two = datasets.Episode(EPISODES[0].observations[:3], *(column[:2] for column in EPISODES[0][1:]))
    with pytest.raises(ConfigError, match="it takes steps or resets of its own"):
        as_in_training([two], SPEC, [Repeats])
