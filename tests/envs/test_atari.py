"""Atari by the standard protocol, and what is said of raw frames."""

import numpy as np
import pytest

pytest.importorskip("ale_py")

from agentkit import envs
from agentkit.envs.atari import make
from agentkit.errors import ConfigError, RawFramesWarning, UnknownNameError
from agentkit.testing.environment import EnvironmentContract


class TestBreakout(EnvironmentContract):
    num_steps = 12

    def make_environment(self):
        return envs.make("atari:Breakout", seed=3, max_frames=24)


def settings_of(environment):
    """What gymnasium made the game with."""
    return environment.environment.gymnasium_environment.spec.kwargs


def test_the_protocol():
    environment = make("Pong")
    assert environment.observation_spec().shape == (84, 84, 4) and environment.observation_spec().dtype == np.uint8
    assert (
        environment.action_spec().num_values == 6 and make("Pong", full_action_space=True).action_spec().maximum == 17
    )
    settings = settings_of(environment)
    assert settings["repeat_action_probability"] == 0.25 and settings["frameskip"] == 1
    assert settings["max_num_frames_per_episode"] == 108_000


def test_the_frame_cap_is_a_truncation():
    environment = make("Pong", max_frames=40)
    timestep, length = environment.reset(), 0
    while not timestep.last():
        timestep, length = environment.step(np.int32(0)), length + 1
    assert (length, timestep.discount) == (10, 1.0)


@pytest.mark.parametrize("evaluation", [False, True])
def test_rewards_are_clipped_and_lives_are_ends_in_training_only(evaluation):
    """A row of Breakout's bricks high up pays 4 or 7; here the rewards of the emulator are told to be 7."""
    environment = envs.make("atari:Breakout", seed=0, raw=True, evaluation=evaluation, life_loss="terminate")
    inner = environment.environment
    step = inner.step
    inner.step = lambda action: step(action)._replace(reward=7.0)
    timestep, length = environment.reset(), 0
    rewards, lives = set(), inner.last_info["lives"]
    while inner.last_info["lives"] == lives and length < 300:  # Fires, and does not move.
        timestep, length = environment.step(np.int32(1)), length + 1
        rewards.add(float(timestep.reward))
    assert inner.last_info["lives"] == lives - 1
    assert timestep.last() != evaluation
    assert rewards == ({28.0} if evaluation else {1.0})


def test_games_and_settings_that_are_not_there():
    with pytest.raises(UnknownNameError, match="Did you mean 'Breakout'"):
        make("Breakuot")
    for setting, message in (
        ({"repeat_action_probability": 0.0}, "sticky_action_prob for ALE's repeat_action_probability"),
        ({"max_num_frames_per_episode": 100}, "max_frames for ALE's max_num_frames_per_episode"),
        ({"max_episode_steps": 40}, r"max_frames \(4 to an action\) for gymnasium's max_episode_steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            make("Pong", **setting)
    with pytest.raises(UnknownNameError, match="difficult"):
        make("Pong", dificulty=1)


def test_raw_frames_bring_a_warning():
    with pytest.warns(RawFramesWarning, match=r"^gymnasium:ALE/Pong-v5 gives single frames .* --env atari:Pong,"):
        envs.make("gymnasium:ALE/Pong-v5")
    envs.make("gymnasium:ALE/Pong-v5", obs_type="grayscale")
    envs.make("gymnasium:ALE/Pong-v5", raw=True)
