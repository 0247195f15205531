"""Horizons: episodes that end sooner or later than the environment's own, and ends that are none."""

import csv
import json

import dm_env
import numpy as np
import pytest

import agentkit
from agentkit import envs
from agentkit.adders import NStepAdder
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.envs.base import Environment
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import ConfigError
from agentkit.replay import InProcessReplay, Table, Uniform
from agentkit.replay.rate_limiter import MinSize
from agentkit.specs import Array, DiscreteArray, make_environment_spec
from agentkit.testing.environment import assert_same_timestep
from agentkit.wrappers.atari import AtariPreprocessing
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.observation_action_reward import ObservationActionReward
from agentkit.wrappers.soft_horizon import SoftHorizon
from agentkit.wrappers.step_limit import StepLimit
from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations


class Clock(Environment):
    """Shows the time since its reset and a number of the episode; terminates after `length` steps."""

    def __init__(self, length=7, seed=0):
        super().__init__(seed)
        self._length = length

    def _start(self):
        self._shown = np.array([0.0, self._rng.random()], np.float32)
        return self._shown

    def _advance(self, action):
        self._shown[0] += 1  # The array that it has shown before: whoever keeps one has to copy it.
        return self._shown, float(self._shown[0]), self._shown[0] == self._length

    def observation_spec(self):
        return Array((2,), np.float32)

    def action_spec(self):
        return DiscreteArray(2)


def played(environment, num_steps):
    """Returns step type, time, discount of each time step, as they were when they were given."""
    timestep, found = environment.reset(), []
    for _ in range(num_steps):
        found.append((int(timestep.step_type), float(timestep.observation[0]), timestep.discount))
        timestep = environment.step(0)
    return found


def test_a_soft_horizon_is_an_end_in_the_data_and_none_in_the_environment():
    first = [(0, 0, None), (1, 1, 1), (1, 2, 1), (2, 3, 1)]  # The end at the horizon bootstraps,
    second = [(0, 3, None), (1, 4, 1), (1, 5, 1), (2, 6, 1)]  # the next episode begins where it was,
    third = [(0, 6, None), (2, 7, 0)]  # and the environment's own end is one.
    assert played(SoftHorizon(Clock(), 3), 12) == [*first, *second, *third, (0, 0, None), (1, 1, 1)]


def test_transitions_of_all_pieces_are_those_of_the_whole():
    def written(environment):
        spec = make_environment_spec(environment)
        table = Table("t", NStepAdder.layout(spec), max_size=99, sampler=Uniform(), rate_limiter=MinSize(1))
        with InProcessReplay([table], seed=0) as replay:
            adder = NStepAdder(replay.writer(2), spec, tables="t", n=1, discount=0.9)
            timestep = environment.reset()
            adder.add_first(timestep)
            for _ in range(20):
                timestep = environment.step(0)
                if timestep.first():
                    adder.add_first(timestep)
                else:
                    adder.add(np.int32(0), timestep)
            items, _ = replay.contents("t")
        return np.column_stack([items.observation[:, 0], items.discount, items.next_observation[:, 0]])

    whole, pieces = written(Clock()), written(SoftHorizon(Clock(), 3))
    assert len(pieces) == 14
    np.testing.assert_array_equal(pieces, whole[:14])


def test_a_soft_episode_is_resumed_to_the_bit_and_a_reseed_ends_it():
    environment = ResumableEnvironment(SoftHorizon(Clock(), 3), seed=4)
    for num_steps in (4, 5, 9):  # At the horizon, at the first step of the next piece, and in another one.
        timestep = environment.reset()
        for _ in range(num_steps):
            timestep = environment.step(0)
        other = ResumableEnvironment(SoftHorizon(Clock(), 3), seed=0)
        assert_same_timestep(other.restore(environment.save()), timestep)
        for _ in range(6):
            assert_same_timestep(other.step(0), environment.step(0))
        environment.reseed(4)
    for _ in range(3):
        environment.step(0)
    environment.step(0)
    assert environment.goes_on
    environment.reseed(4)
    assert_same_timestep(environment.reset(), ResumableEnvironment(Clock(), seed=4).reset())


def test_terminations_become_truncations_and_nothing_else_changes():
    assert played(TerminationsAsTruncations(Clock(2)), 4) == [(0, 0, None), (1, 1, 1), (2, 2, 1), (0, 0, None)]
    batch = TerminationsAsTruncations(BatchedEnvironment([Clock(1), Clock(2)]))
    batch.reset()
    timestep = batch.step(np.zeros(2, np.int32))
    assert timestep.step_type.tolist() == [2, 1] and timestep.discount.tolist() == [1, 1]
    assert timestep.reward.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        ([SoftHorizon, FrameStack], "Put SoftHorizon after FrameStack"),
        ([SoftHorizon, ObservationActionReward], "Put SoftHorizon after ObservationActionReward"),
        ([SoftHorizon, TerminationsAsTruncations, StepLimit], "Put SoftHorizon after StepLimit"),
        ([TerminationsAsTruncations, AtariPreprocessing], "Put TerminationsAsTruncations after Atari"),
        ([ClipReward, ObservationActionReward], "Put ClipReward after"),
    ],
)
def test_wrong_orders_are_refused(wrappers, message):
    agent = dqn.make_agent()
    with pytest.raises(ConfigError, match=message):
        agentkit.ExperimentConfig(agent, "agentkit:catch", 10, wrappers=wrappers)
    agentkit.ExperimentConfig(agent, "agentkit:catch", 10, wrappers=wrappers[::-1])


def test_ends_are_kept_in_evaluations_and_soft_horizons_are_in_both():
    wrappers = [lambda inner: SoftHorizon(inner, 4), TerminationsAsTruncations]
    agent = dqn.make_agent()
    experiment = agentkit.ExperimentConfig(agent, "agentkit:catch", 10, wrappers=wrappers)

    def last_discounts(environment):
        steps = [environment.reset(), *(environment.step(np.int32(1)) for _ in range(11))]
        return [float(timestep.discount) for timestep in steps if timestep.step_type == dm_env.StepType.LAST]

    assert last_discounts(experiment.make_environment(0)) == [1, 1, 1]
    assert last_discounts(experiment.make_environment(0, evaluation=True)) == [1, 1, 0]


@pytest.mark.full
def test_a_run_with_another_limit_and_a_soft_horizon_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    run = tmp_path / "dqn-gymnasium_Pendulum-v1-seed0"
    words = ["train", "dqn", "--env", "gymnasium:Pendulum-v1", "--env-set", "max_episode_steps=250"]
    words += ["--wrapper", "discretise(bins=3)", "--wrapper", "soft_horizon(max_steps=100)"]
    words += ["--wrapper", "terminations_as_truncations", "--set", "hidden_sizes=4", "--eval-every", "0"]
    assert main([*words, "--steps", "500", "--out", str(tmp_path)]) == 0
    with open(run / "logs" / "train.csv") as file:
        assert [row["episode_length"] for row in csv.DictReader(file)] == ["100", "100", "50"] * 2
    record = json.loads((run / "config.json").read_text())
    assert record["environment_settings"]["max_episode_steps"] == 250
    assert "SoftHorizon" in json.dumps(record["wrappers"])
    assert agentkit.evaluate(run, 3)["episode_length"] == [100, 100, 50]
    assert agentkit.evaluate(run, 1, environment_settings={"max_episode_steps": 30})["episode_length"] == [30]
    refused = ["--env-set", "max_episode_steps=0", "--steps", "500", "--out", str(tmp_path / "refused")]
    assert main(["train", "sac", "--env", "gymnasium:Pendulum-v1", *refused]) == 2
    assert "max_episode_steps: expected at least 1, or -1 for no limit, found 0" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("limit", "expected"), [(300, 300), (20, 20), (None, 200)])
def test_gymnasiums_own_limit_is_raised_and_lowered(limit, expected):
    pytest.importorskip("gymnasium")
    environment = envs.make("gymnasium:Pendulum-v1", max_episode_steps=limit)
    timestep, length = environment.reset(), 0
    while not timestep.last():
        timestep = environment.step(np.zeros(1, np.float32))
        length += 1
    assert (length, timestep.discount) == (expected, 1.0)
