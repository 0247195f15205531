"""Where wrappers change rewards, the training's log has the environment's own returns beside theirs."""

import functools
import io

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from agentkit import envs, specs
from agentkit.core import Actor
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, ReadyEnvironmentLoop
from agentkit.envs.base import Environment
from agentkit.envs.gymnasium_vector import VectorEnvironment
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.experiment.evaluation.evaluate import summarise
from agentkit.loggers.terminal import TerminalLogger
from agentkit.wrappers.action_repeat import ActionRepeat
from agentkit.wrappers.atari import AtariPreprocessing
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.reward_scale import RewardScale
from agentkit.wrappers.soft_horizon import SoftHorizon
from agentkit.wrappers.step_limit import StepLimit
from tests.wrappers.test_atari import Game

HALF = functools.partial(RewardScale, scale=0.5)


class Pays(Environment):
    """Pays 5, 6, 7, ... in episodes of 4 steps."""

    def _start(self):
        self.time = 0
        return np.float32([0])

    def _advance(self, action):
        self.time += 1
        return np.float32([self.time]), 4.0 + self.time, self.time == 4

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


class Idle(Actor):
    """Takes action 0 in all environments."""

    def __init__(self, num_envs=None):
        self.action = np.int32(0) if num_envs is None else np.zeros(num_envs, np.int32)

    def select_action(self, observation, numbers=None):
        return self.action if numbers is None else np.zeros(len(numbers), np.int32)

    def observe_first(self, timestep):
        pass

    def observe(self, *arguments):
        pass

    def update(self, wait=False):
        pass


def loop_of(environment):
    num_envs = getattr(environment, "num_envs", None)
    return (
        EnvironmentLoop(environment, Idle())
        if num_envs is None
        else BatchedEnvironmentLoop(environment, Idle(num_envs))
    )


def returns(records):
    return [(record["episode_return"], record.get("episode_raw_return")) for record in records]


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        ([], [(26.0, None)] * 2),
        ([ClipReward], [(4.0, 26.0)] * 2),
        ([HALF], [(13.0, 26.0)] * 2),
        ([HALF, ClipReward], [(4.0, 26.0)] * 2),
        ([ClipReward, functools.partial(ActionRepeat, num_repeats=3)], [(4.0, 26.0)] * 2),
        # What goes on inside is not counted twice.
        ([ClipReward, functools.partial(SoftHorizon, max_steps=3)], [(3.0, 18.0), (1.0, 8.0)]),
        ([ClipReward, functools.partial(StepLimit, max_steps=3)], [(3.0, 18.0)] * 2),
    ],
)
def test_returns_before_and_after_the_change_are_logged(wrappers, expected):
    for num_envs in (None, 2):
        each = num_envs or 1
        records = loop_of(envs.make(Pays, num_envs=num_envs, wrappers=wrappers)).run(num_episodes=2 * each)
        assert returns(records) == [pair for pair in expected for _ in range(each)]


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("stop", [0, 2, 4, 6])
@pytest.mark.parametrize("outside", [False, True])
def test_a_resumed_episode_has_its_whole_return(num_envs, stop, outside):
    def make():
        inner = envs.make(Pays, num_envs=num_envs, wrappers=[] if outside else [HALF])
        return loop_of(HALF(inner) if outside else inner)

    loop = make()
    for _ in range(stop):
        loop.step()
    state = loop.save()
    expected = returns(loop.run(num_episodes=3))
    resumed = make()
    resumed.restore(state)
    assert returns(resumed.run(num_episodes=3)) == expected
    assert expected[0] == (13.0, 26.0)


def test_a_checkpoint_of_before_has_none_and_is_read():
    loop = loop_of(envs.make(Pays, wrappers=[HALF]))
    for _ in range(2):
        loop.step()
    state = {name: value for name, value in loop.save().items() if name != "raw_return"}
    resumed = loop_of(envs.make(Pays, wrappers=[HALF]))
    resumed.restore(state)
    assert returns(resumed.run(num_episodes=2)) == [(13.0, 26.0)] * 2


@pytest.mark.parametrize("ready", [None, 1])
def test_environments_in_workers_have_them(ready):
    environment = envs.make(Pays, num_envs=3, workers=2, ready=ready, wrappers=[ClipReward])
    try:
        loop = ReadyEnvironmentLoop(environment, Idle()) if ready else loop_of(environment)
        assert returns(loop.run(num_episodes=6))[:6] == [(4.0, 26.0)] * 6
    finally:
        environment.close()


class Pool(dm_env.Environment):
    """Steps two environments at once, as a simulator's own batch does; the second ends a step earlier."""

    num_envs = 2

    def reset(self):
        self.times = np.zeros(2, int)
        return self.observe(np.zeros(2, np.float32))

    def step(self, action):
        was_last = self.times == (4, 3)
        self.times = np.where(was_last, 0, self.times + 1)
        return self.observe(np.where(was_last, 0, 4 + self.times).astype(np.float32))

    def observe(self, reward):
        step_type = np.where(self.times == 0, 0, np.where(self.times == (4, 3), 2, 1)).astype(np.int32)
        return dm_env.TimeStep(step_type, reward, np.ones(2, np.float32), np.zeros((2, 1), np.float32))

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def reward_spec(self):
        return specs.Array((), np.float32)


def test_a_wrapper_around_a_batch_sums_for_each_environment():
    records = loop_of(HALF(Pool())).run(num_episodes=4)
    assert returns(records) == [(9.0, 18.0), (13.0, 26.0), (9.0, 18.0), (13.0, 26.0)]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_environment_that_waits_for_others_to_begin_keeps_what_it_has_summed(mode):
    """CartPole pays 1 a step, which is clipped to 1."""
    vector = gymnasium.make_vec("CartPole-v1", 4, "sync", vector_kwargs={"autoreset_mode": mode})
    records = loop_of(ClipReward(VectorEnvironment(vector, seed=0))).run(num_episodes=12)
    assert returns(records) == [(record["episode_length"],) * 2 for record in records]


@pytest.mark.parametrize(("life_loss", "expected"), [("ignore", [60.0] * 2), ("terminate", [24.0, 8.0])])
def test_atari_sums_what_it_clips(life_loss, expected):
    """The game pays 2 a frame; lives are lost at frames 9 and 17 of 30. The no-op after that is no step's."""

    def make(**settings):
        return ResumableEnvironment(AtariPreprocessing(Game(), max_noops=0, life_loss=life_loss, **settings), seed=0)

    plain, clipped = (loop_of(make(clip_reward=clip)).run(num_episodes=2) for clip in (False, True))
    assert [pair[0] for pair in returns(plain)] == expected == [pair[1] for pair in returns(clipped)]
    assert returns(plain)[0][1] is None
    assert [record["episode_length"] for record in clipped] == [record["episode_return"] for record in clipped]


@pytest.mark.parametrize(("wrappers", "expected"), [([], (26.0, None)), ([ClipReward], (4.0, 26.0))])
def test_an_evaluation_has_both_where_rewards_are_changed_in_it(wrappers, expected):
    records = loop_of(envs.make(Pays, wrappers=wrappers)).run(num_episodes=2)
    assert returns([summarise(records)]) == [expected]


def test_the_progress_line_shows_the_environments_own():
    stream = io.StringIO()
    logger = TerminalLogger(num_steps=10, stream=stream)
    logger.write({"steps": 10, "episode_return": 4.0, "episode_raw_return": 26.0})
    logger.close()
    assert "return 26.0" in stream.getvalue()


@pytest.mark.parametrize("num_envs", [None, 2])
def test_an_episode_that_is_cut_has_its_own_return_and_no_more(num_envs):
    """A batch is not reset at a cut: what follows counts as the next episode, with a raw return from 0."""
    environment = envs.make(Pays, num_envs=num_envs, wrappers=[HALF])
    actor = Idle(num_envs)
    kind = EnvironmentLoop if num_envs is None else BatchedEnvironmentLoop
    loop = kind(environment, actor, max_episode_steps=3)
    records = loop.run(num_episodes=3 * (num_envs or 1))
    expected = [(9.0, 18.0)] * 3 if num_envs is None else [(9.0, 18.0), (4.0, 8.0), (9.0, 18.0)]
    assert returns(records) == [pair for pair in expected for _ in range(num_envs or 1)]
