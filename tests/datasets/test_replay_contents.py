"""Data out: the episodes that an adder was given are in the replay that it filled, whatever items it made of them."""

from typing import Any

import numpy as np
import pytest
import tree

from agentkit.adders import NStepAdder, SequenceAdder
from agentkit.datasets import Episode, add_episode
from agentkit.datasets.replay_contents import join_sequences, join_transitions
from agentkit.replay import InProcessReplay, MinSize, Table
from agentkit.specs import Array, BoundedArray, DiscreteArray, EnvironmentSpec

SPEC = EnvironmentSpec(
    {"x": Array((2,), np.float32)}, DiscreteArray(5), Array((), np.float32), BoundedArray((), np.float32, 0.0, 1.0)
)


def make_episodes(lengths: list[int], seed: int = 0) -> list[Episode]:
    """Every second one terminates, the others are truncated."""
    rng = np.random.default_rng(seed)
    episodes = []
    for number, length in enumerate(lengths):
        ends = np.zeros((2, length), bool)
        ends[number % 2, -1] = True
        observations = {"x": rng.normal(size=(length + 1, 2)).astype(np.float32)}
        actions = rng.integers(5, size=length).astype(np.int32)
        episodes.append(Episode(observations, actions, rng.normal(size=length).astype(np.float32), *ends))
    return episodes


def assert_same(found: list[Episode], expected: list[Episode]) -> None:
    assert sorted(len(episode.rewards) for episode in found) == sorted(len(episode.rewards) for episode in expected)
    by_action = {episode.observations["x"].tobytes(): episode for episode in found}
    for other in expected:
        one = by_action[other.observations["x"].tobytes()]
        for x, y in zip(tree.flatten(one), tree.flatten(other), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)


def unfinished(episode: Episode, num_steps: int) -> Episode:
    """The first steps of an episode, as those of one that was cut off."""
    cut = Episode({"x": episode.observations["x"][: num_steps + 1]}, *(leaf[:num_steps] for leaf in list(episode)[1:]))
    cut.truncations[-1] = True
    return cut


def add_some_steps(adder: Any, episode: Episode, num_steps: int) -> None:
    """Adds the first steps of an episode that goes on."""

    class StopError(Exception):
        pass

    class Counting:
        count = 0

        def add_first(self, timestep: Any) -> None:
            adder.add_first(timestep)

        def add(self, *step: Any) -> None:
            adder.add(*step)
            self.count += 1
            if self.count == num_steps:
                raise StopError

    with pytest.raises(StopError):
        add_episode(Counting(), episode)  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_transitions_give_back_episodes(n_step: int, gamma: float) -> None:
    """Of two environments in turns, long episodes among them, and one unfinished."""
    episodes = make_episodes([1, 2, 3, 5, 6, 400, 1, 7])
    replay = InProcessReplay([Table("t", NStepAdder.layout(SPEC), 10_000, rate_limiter=MinSize(1))])
    adders = [
        NStepAdder(replay.writer(NStepAdder.history(n_step)), SPEC, tables="t", n=n_step, discount=gamma)
        for _ in range(2)
    ]
    (going_on,) = make_episodes([30], seed=1)
    add_some_steps(adders[1], going_on, 12)
    for episode in episodes:
        add_episode(adders[0], episode)
    expected = list(episodes)
    if n_step == 1:
        expected.append(unfinished(going_on, 11))  # The newest step is no item yet.
    assert_same(join_transitions(*replay.contents("t"), n_step, gamma), expected)


@pytest.mark.parametrize("n_step", [1, 3])
def test_of_a_full_table_the_rest_of_an_episode_is_given_back(n_step: int) -> None:
    (episode,) = make_episodes([40])
    replay = InProcessReplay([Table("t", NStepAdder.layout(SPEC), 10, rate_limiter=MinSize(1))])
    add_episode(
        NStepAdder(replay.writer(NStepAdder.history(n_step)), SPEC, tables="t", n=n_step, discount=0.9), episode
    )
    (found,) = join_transitions(*replay.contents("t"), n_step, 0.9)
    assert len(found.rewards) == 10 and found.terminations[-1]
    np.testing.assert_allclose(found.rewards, episode.rewards[-10:], atol=1e-6)
    np.testing.assert_array_equal(found.observations["x"], episode.observations["x"][-11:])


@pytest.mark.parametrize(("length", "period"), [(4, 3), (5, 2), (3, 1)])
def test_sequences_give_back_episodes(length: int, period: int) -> None:
    """They run on from one episode into the next; the last rows, which fill no sequence, are missing."""
    episodes = make_episodes([1, 2, 3, 9, 5])
    replay = InProcessReplay([Table("s", SequenceAdder.layout(SPEC, length), 1_000, rate_limiter=MinSize(1))])
    adder = SequenceAdder(
        replay.writer(SequenceAdder.history(length)), SPEC, tables="s", length=length, period=period,
        end_of_episode="continue",
    )  # fmt: skip
    for episode in episodes:
        add_episode(adder, episode)
    found = join_sequences(*replay.contents("s"))
    assert_same(found[:4], episodes[:4])
    if len(found) == 5:
        num_steps = len(found[4].rewards)
        assert num_steps > 1
        np.testing.assert_array_equal(found[4].actions, episodes[4].actions[:num_steps])
        np.testing.assert_array_equal(found[4].observations["x"], episodes[4].observations["x"][: num_steps + 1])
        assert found[4].truncations[-1] != (num_steps == 5)
