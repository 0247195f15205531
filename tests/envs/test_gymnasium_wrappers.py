"""Gymnasium's own wrappers among a run's: they go around gymnasium's environment, inside of the adapter."""

import functools

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from agentkit import envs  # noqa: E402
from agentkit.agents import dqn  # noqa: E402
from agentkit.cli.values.environments import parse_wrapper  # noqa: E402
from agentkit.envs.catch import Catch  # noqa: E402
from agentkit.envs.gymnasium import GymnasiumEnvironment  # noqa: E402
from agentkit.errors import ConfigError, OwnStatisticsWarning  # noqa: E402
from agentkit.experiment import ExperimentConfig  # noqa: E402
from agentkit.wrappers.clip_reward import ClipReward  # noqa: E402
from agentkit.wrappers.frame_stack import FrameStack  # noqa: E402

LIMIT = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=3)
STACK = functools.partial(FrameStack, num_frames=2)


class Flipped(gymnasium.ObservationWrapper):
    """Shows what it sees the other way round."""

    def observation(self, observation):
        return -observation


def make_cart_pole():
    return gymnasium.make("CartPole-v1")


def make_adapted():
    return GymnasiumEnvironment(make_cart_pole())


@pytest.mark.parametrize("environment", ["gymnasium:CartPole-v1", make_cart_pole, make_adapted])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_they_go_inside(environment, num_envs):
    make = functools.partial(envs.make, environment, seed=3, num_envs=num_envs)
    plain, wrapped = make(wrappers=[STACK]), make(wrappers=[Flipped, LIMIT, STACK])
    assert wrapped.resumable == plain.resumable
    action = np.int32(0) if num_envs is None else np.zeros(num_envs, np.int32)
    for step in range(4):
        expected, found = ((e.step(action) if step else e.reset()) for e in (plain, wrapped))
        np.testing.assert_array_equal(found.observation, -expected.observation)
    assert np.all(np.asarray(found.step_type) == 2) and np.all(np.asarray(found.discount) == 1)


def test_the_command_line_takes_them():
    made = parse_wrapper("gymnasium.wrappers:TimeLimit(max_episode_steps=3)", imports=["gymnasium"])
    environment = envs.make("gymnasium:CartPole-v1", wrappers=[made])
    environment.reset()
    assert [environment.step(np.int32(0)).last() for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "environment", ["agentkit:catch", Catch, "gymnasium:CartPole-v1", make_cart_pole, make_adapted]
)
@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            lambda environment: None,
            r"wrappers: expected an environment of <lambda>, found None. Does it end in a return\?",
        ),
        (
            FrameStack,
            r"FrameStack needs num_frames beside the environment. Give functools.partial\(FrameStack, num_frames=",
        ),
        (gymnasium.wrappers.TimeLimit, "TimeLimit needs max_episode_steps beside the environment"),
    ],
)
def test_a_wrapper_that_cannot_be_put_around_is_named(environment, wrapper, message):
    if wrapper is gymnasium.wrappers.TimeLimit and environment in ("agentkit:catch", Catch):
        message = "TimeLimit is gymnasium's, and goes around gymnasium's environments"
    with pytest.raises(ConfigError, match=message):
        envs.make(environment, wrappers=[wrapper])


def test_a_name_is_no_wrapper():
    for names in (["frame_stack"], "frame_stack"):
        with pytest.raises(
            ConfigError, match=r"found .*'frame_stack'.* Write a list .* names are for the command line"
        ):
            ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10, wrappers=names)


@pytest.mark.parametrize(
    ("environment", "wrappers", "message"),
    [
        ("agentkit:catch", [LIMIT], "TimeLimit is gymnasium's, and goes around gymnasium's environments; found Catch"),
        (Catch, [LIMIT], "TimeLimit is gymnasium's, and goes around gymnasium's environments; found Catch"),
        (
            "gymnasium:CartPole-v1",
            [lambda inner: LIMIT(inner)],
            r"Give gymnasium's class itself, or functools\.partial",
        ),
        (make_cart_pole, [lambda inner: LIMIT(inner)], r"Give gymnasium's class itself, or functools\.partial"),
    ],
)
def test_where_they_cannot_go_it_is_said_how(environment, wrappers, message):
    with pytest.raises(ConfigError, match=message):
        envs.make(environment, wrappers=wrappers)


class OwnNormalization(gymnasium.wrappers.NormalizeObservation):
    """A class of a user's that is derived from gymnasium's."""


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        ([ClipReward, LIMIT], "Put TimeLimit before ClipReward"),
        ([gymnasium.wrappers.NormalizeObservation], "NormalizeObservation has statistics of its own"),
        ([gymnasium.wrappers.NormalizeReward], "NormalizeReward has statistics of its own"),
    ],
)
def test_a_run_refuses_those_out_of_place(wrappers, message):
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig(dqn.make_agent(), "gymnasium:CartPole-v1", 10, wrappers=wrappers)
    ExperimentConfig(dqn.make_agent(), "gymnasium:CartPole-v1", 10, wrappers=[LIMIT, ClipReward])


def frozen():
    environment = gymnasium.wrappers.NormalizeObservation(make_cart_pole())
    environment.update_running_mean = False
    return LIMIT(environment)


def with_own_field():
    environment = make_cart_pole()
    environment.unwrapped.envs = 4
    return environment


class SharedNormalization(gymnasium.wrappers.NormalizeObservation):
    """One whose statistics are the same in all environments, as its author says."""

    keeps_statistics = False


@pytest.mark.parametrize(
    "environment",
    [
        lambda: OwnNormalization(make_cart_pole()),
        lambda: LIMIT(gymnasium.wrappers.NormalizeReward(make_cart_pole())),
        gymnasium.wrappers.NormalizeObservation(make_cart_pole()),
        lambda: gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", num_envs=2)),
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", wrappers=[OwnNormalization]),
    ],
)
def test_a_run_warns_of_statistics_that_the_environment_brings_along(environment):
    """Else evaluations and saved policies saw other numbers than the training, and nobody said so."""
    experiment = ExperimentConfig(dqn.make_agent(), environment, 10, evaluation_period=0)
    with pytest.warns(OwnStatisticsWarning, match=r"^the environment: \w*Normali\w+ has statistics of its own in each"):
        experiment.make_environment(0).close()


@pytest.mark.parametrize(
    ("environment", "wrappers"),
    [(frozen, []), ("gymnasium:CartPole-v1", [SharedNormalization]), (with_own_field, [])],
)
def test_other_environments_are_made_without_a_word(environment, wrappers):
    experiment = ExperimentConfig(dqn.make_agent(), environment, 10, evaluation_period=0, wrappers=wrappers)
    experiment.make_environment(0).close()


def test_those_for_vector_environments_go_where_these_are_made():
    wrappers = gymnasium.wrappers.vector
    for each in (wrappers.ClipReward, functools.partial(wrappers.ClipReward, max_reward=1)):
        with pytest.raises(ConfigError, match=r"wrappers: ClipReward is gymnasium's, for vector environments, found"):
            envs.make("gymnasium_vector:CartPole-v1", num_envs=2, wrappers=[each])
