"""Atari preprocessing, on a scripted game and, where it is installed, on a real one."""

import importlib.util

import numpy as np
import pytest

from agentkit import ExperimentConfig, envs, specs
from agentkit.agents import dqn
from agentkit.cli.values.environments import parse_wrapper
from agentkit.envs.base import Environment
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import ConfigError, SpecError
from agentkit.testing.environment import EnvironmentContract
from agentkit.types import LAST
from agentkit.wrappers.atari import AtariPreprocessing
from agentkit.wrappers.observation_action_reward import ObservationActionReward


class Game(Environment):
    """Frame t is grey 10 t (even t) or black (odd t); a life is lost at steps 9 and 17 of the game."""

    length = 30

    def _start(self):
        self.time = 0
        self.last_info = {"lives": 3}
        return self.frame()

    def frame(self):
        level = 10 * self.time % 250 if self.time % 2 == 0 else 0
        return np.full((210, 160, 3), level, np.uint8)

    def _advance(self, action):
        self.time += 1
        self.last_info = {"lives": 3 - (self.time >= 9) - (self.time >= 17)}
        return self.frame(), 2.0, self.time == self.length

    def observation_spec(self):
        return specs.Array((210, 160, 3), np.uint8)

    def action_spec(self):
        return specs.DiscreteArray(3, dtype=np.int32)


class TestScripted(EnvironmentContract):
    num_steps = 30

    def make_environment(self):
        return ResumableEnvironment(AtariPreprocessing(Game(), max_noops=5), seed=3)


def play(environment, num_steps):
    return [environment.reset(), *(environment.step(1) for _ in range(num_steps))]


def test_frames():
    steps = play(AtariPreprocessing(Game(), max_noops=0), 8)
    # Each step is four frames; the maximum of the last two is the even one, the fourth.
    assert [step.observation[0, 0].tolist() for step in steps[:3]] == [
        [0, 0, 0, 0],
        [0, 0, 0, 40],
        [0, 0, 40, 80],
    ]
    assert steps[1].observation.shape == (84, 84, 4) and steps[1].observation.dtype == np.uint8
    assert steps[1].reward == 8.0 and steps[1].reward.dtype == np.float32
    # 30 frames: seven whole steps and one of two frames.
    assert [int(step.step_type) for step in steps] == [0] + [1] * 7 + [2]
    assert steps[-1].reward == 4.0 and steps[-1].discount == 0.0


def test_the_maximum_is_over_the_last_two_frames():
    steps = play(AtariPreprocessing(Game(), max_noops=0, num_repeats=3, num_frames=1), 1)
    assert steps[1].observation.max() == 20  # Frames 2 (grey 20) and 3 (black).


def test_noops_differ_between_seeds_and_not_within_one():
    environment = AtariPreprocessing(Game(), max_noops=20, num_repeats=1, num_frames=1)

    def number_of_noops(seed):
        environment.reseed(seed)
        environment.reset()
        return environment.environment.time

    numbers = [number_of_noops(seed) for seed in range(30)]
    assert len(set(numbers)) > 5 and max(numbers) <= 20
    assert numbers == [number_of_noops(seed) for seed in range(30)]


@pytest.mark.parametrize(
    ("life_loss", "discounts", "last"),
    [
        ("ignore", [1, 1, 1, 1, 1], 1),
        ("zero_discount", [1, 1, 0, 1, 0], 1),
        ("terminate", [1, 1, 0], 2),
    ],
)
def test_life_loss(life_loss, discounts, last):
    steps = play(AtariPreprocessing(Game(), max_noops=0, life_loss=life_loss), len(discounts))
    assert [float(step.discount) for step in steps[1:]] == discounts
    assert steps[-1].step_type == last


def test_after_a_lost_life_the_game_goes_on_until_it_is_over():
    """Lives are lost at times 9 and 17 of 30; each reset takes one no-op, which is a frame, and a game that is over
    begins anew."""
    environment = AtariPreprocessing(Game(), max_noops=0, life_loss="terminate")
    lasts, times = [], []
    timestep = environment.reset()
    for _ in range(14):
        before, timestep = timestep, environment.step(0)
        if before.last():
            assert timestep.first() and np.ptp(timestep.observation) == 0
            times.append(environment.environment.time)
        if timestep.last():
            assert timestep.discount == 0.0
            lasts.append(environment.environment.time)
    assert lasts[:3] == [12, 17, 30] and times[:3] == [13, 18, 0]


def test_it_resumes_in_a_later_life_of_a_game():
    def make():
        return ResumableEnvironment(AtariPreprocessing(Game(), max_noops=3, life_loss="terminate"), seed=3)

    whole = make()
    whole.reset()
    for _ in range(6):
        whole.step(1)
    assert whole.environment.environment.last_info["lives"] < 3 and whole.save()["episode"] == 0
    resumed = make()
    resumed.restore(whole.save())
    for _ in range(40):
        expected, found = whole.step(1), resumed.step(1)
        assert expected.step_type == found.step_type
        np.testing.assert_array_equal(expected.observation, found.observation)
    assert whole.save()["episode"] > 1


class TestLives(EnvironmentContract):
    num_steps = 30

    def make_environment(self):
        return ResumableEnvironment(AtariPreprocessing(Game(), max_noops=5, life_loss="terminate"), seed=3)


def test_reward_clipping():
    assert play(AtariPreprocessing(Game(), max_noops=0, clip_reward=True), 1)[1].reward == 1.0


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("evaluation", [False, True])
def test_an_evaluation_plays_whole_games_for_their_own_rewards(evaluation, num_envs):
    """A game has 30 frames that pay 2 each; the first life is lost in the third action."""
    wrapper = parse_wrapper("atari(life_loss='terminate', clip_reward=True, max_noops=0)")
    plan = ExperimentConfig(dqn.make_agent(), Game, 40, wrappers=[wrapper], num_envs=num_envs)
    environment = plan.make_environment(0, num_envs, evaluation=evaluation)
    actions = np.int32(0) if num_envs is None else np.zeros(num_envs, np.int32)
    timestep, paid = environment.reset(), []
    while not np.all(timestep.step_type == LAST):
        timestep = environment.step(actions)
        paid.append(float(np.max(timestep.reward)))
    assert paid == ([8.0] * 7 + [4.0] if evaluation else [1.0] * 3)
    assert (getattr(environment, "raw_return", None) is None) == evaluation


@pytest.mark.parametrize("evaluation", [False, True])
def test_rewards_that_the_agent_observes_are_clipped_in_evaluations_too(evaluation):
    wrappers = [parse_wrapper("atari(life_loss='terminate', clip_reward=True)"), ObservationActionReward]
    plan = ExperimentConfig(dqn.make_agent(), Game, 40, wrappers=wrappers)
    environment = plan.make_environment(0, evaluation=evaluation)
    environment.reset()
    assert float(environment.step(np.int32(0)).reward) == 1.0


def test_averaging_keeps_the_mean_and_a_step_edge():
    environment = AtariPreprocessing(Game(), max_noops=0)
    frame = np.zeros((210, 160), np.uint8)
    frame[:105] = 200
    small = environment._process(frame)
    assert (small[:42] == 200).all() and (small[42:] == 0).all()
    noise = np.random.default_rng(0).integers(0, 256, (210, 160, 3), np.uint8)
    luminance = (noise @ np.array([0.299, 0.587, 0.114])).mean()
    assert environment._process(noise).mean() == pytest.approx(luminance, abs=0.1)


def test_refusals():
    with pytest.raises(SpecError, match="expects frames uint8"):
        AtariPreprocessing(envs.make("agentkit:catch", raw=True))
    with pytest.raises(ConfigError, match="life_loss: expected ignore"):
        AtariPreprocessing(Game(), life_loss="yes")
    with pytest.raises(ConfigError, match="at least 1"):
        AtariPreprocessing(Game(), num_repeats=0)


@pytest.mark.parametrize("inside", ["_frameskip", "frame_skip", "_skip"])
def test_an_environment_that_skips_frames_itself_is_refused(inside):
    """Under the names of ALE, gymnasium's AtariPreprocessing, and its MaxAndSkipObservation, the innermost at last."""

    class Layer:
        def __init__(self, **attributes):
            vars(self).update(attributes)

    game = Game()
    for skip in (4, (2, 5)):
        game.gymnasium_environment = Layer(env=Layer(env=Layer(**{inside: skip})))
        with pytest.raises(ConfigError, match=r"found one with frameskip=.*--env-set frameskip=1"):
            AtariPreprocessing(game)
        AtariPreprocessing(game, num_repeats=1)
    game.gymnasium_environment = Layer(env=Layer(**{inside: 1}))
    AtariPreprocessing(game)


if importlib.util.find_spec("ale_py") is not None:

    def test_ale_that_skips_frames_is_refused():
        with pytest.raises(ConfigError, match=r"frameskip=4.*repeated 4 times.*--env-set frameskip=1"):
            envs.make("gymnasium:ALE/Pong-v5", wrappers=[AtariPreprocessing])

    class TestPong(EnvironmentContract):
        num_steps = 40
        save_points = (0, 20)

        def make_environment(self):
            return envs.make(
                "gymnasium:ALE/Pong-v5",
                seed=1,
                frameskip=1,
                repeat_action_probability=0.25,
                max_episode_steps=80,
                wrappers=[AtariPreprocessing],
            )
