"""Data that stay as they are: the items are those of replay, the draws uniform, seeded and resumable."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tree

from agentkit import checkpoint, specs
from agentkit.agents import dqn, r2d2, td3
from agentkit.core import BatchPlan
from agentkit.datasets import Columns, Episode, ItemStore, ReplayDataset, TransitionsDataset, add_episode
from agentkit.errors import CheckpointError, ConfigError
from agentkit.replay import InProcessReplay
from agentkit.types import Transition

SPEC = specs.EnvironmentSpec(
    specs.Array((2,), np.float32, "o"),
    specs.DiscreteArray(3, dtype=np.int32, name="action"),
    specs.Array((), np.float32, "reward"),
    specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"),
)


def make_episode(length: int, terminates: bool, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    ended = np.zeros((2, length), bool)
    ended[0 if terminates else 1, -1] = True
    observations = rng.normal(size=(length + 1, 2)).astype(np.float32)
    actions = rng.integers(3, size=length).astype(np.int32)
    return Episode(observations, actions, rng.normal(size=length), *ended)


EPISODES = [make_episode(4, True, 1), make_episode(2, False, 2), make_episode(6, False, 3), make_episode(1, True, 4)]


def make_agent(**settings: Any) -> Any:
    return dqn.make_agent(dqn.Config(**{"n_step": 3, "discount": 0.5, "min_replay_size": 1, **settings}))


def make_store(agent: Any) -> ItemStore:
    (table,) = agent.make_tables(SPEC)
    store = ItemStore(table)
    adder = agent.make_adder(store, SPEC)
    for episode in EPISODES:
        add_episode(adder, episode)
    adder.close()
    return store


def expected_items(n: int, gamma: float) -> set[tuple[float, ...]]:
    """Every n-step transition of the episodes, summed in a loop: (o, a, reward, discount, next o)."""
    found = set()
    for episode in EPISODES:
        length = len(episode.rewards)
        spans = {(max(t - n, 0), t) for t in range(1, length + 1)} | {(t, length) for t in range(length - n, length)}
        for start, stop in (span for span in spans if span[0] >= 0):
            reward, weight = 0.0, 1.0
            for t in range(start, stop):
                reward += weight * episode.rewards[t]
                weight *= gamma * (0.0 if episode.terminations[t] else 1.0)
            row = (*episode.observations[start], episode.actions[start], reward, weight, *episode.observations[stop])
            found.add(tuple(np.round(np.float64(row), 4)))
    return found


@pytest.mark.parametrize("n_step", [1, 3])
def test_items_are_the_n_step_transitions_of_the_episodes(n_step: int) -> None:
    """Termination bootstraps nothing, truncation does, and gamma is in each item as often as there are steps."""
    store = make_store(make_agent(n_step=n_step))
    data = store.take(np.arange(len(store)))
    assert isinstance(data, Transition)
    rows = np.column_stack([data.observation, data.action, data.reward, data.discount, data.next_observation])
    assert {tuple(row) for row in np.round(np.float64(rows), 4)} == expected_items(n_step, 0.5)
    assert len(store) == len(expected_items(n_step, 0.5))


def test_items_and_info_are_as_replay_gives_them() -> None:
    """All that differs is which were drawn: sorted by key the contents agree, leaf for leaf and dtype for dtype."""
    agent = make_agent()
    store = make_store(agent)
    with InProcessReplay(agent.make_tables(SPEC), seed=0, in_turns=True) as replay:
        adder = agent.make_adder(replay, SPEC)
        for episode in EPISODES:
            add_episode(adder, episode)
        theirs = next(ReplayDataset(replay, agent.batch_plan._replace(batch_size=300)))
        stored, _ = replay.contents(agent.batch_plan.table)
    mine = next(TransitionsDataset(store, BatchPlan("transitions", 300), seed=0))
    tree.map_structure(np.testing.assert_array_equal, store.take(np.arange(len(store))), stored)
    for found, expected in zip(tree.flatten(mine), tree.flatten(theirs), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    keys, sample = mine.keys.astype(int), mine.sample
    np.testing.assert_array_equal(sample.info.probability, theirs.sample.info.probability)
    np.testing.assert_array_equal(sample.info.table_size, theirs.sample.info.table_size)
    np.testing.assert_array_equal(sample.data.reward, stored.reward[keys])
    assert set(keys) == set(range(len(store)))
    np.testing.assert_array_equal(sample.info.times_sampled, np.bincount(keys)[keys])


def test_batches_are_drawn_uniformly() -> None:
    dataset = TransitionsDataset(Columns(np.arange(10)), BatchPlan("x", 1_000), seed=1)
    counts = sum(np.bincount(next(dataset).sample.data, minlength=10) for _ in range(20))
    assert abs(counts - 2_000).max() < 4 * np.sqrt(20_000 * 0.1 * 0.9)


def test_stacked_batches_are_the_same_draws() -> None:
    one, stacked = (
        TransitionsDataset(make_store(make_agent()), BatchPlan("transitions", 4, count), seed=3) for count in (1, 3)
    )
    batches = [next(one) for _ in range(3)]
    found = next(stacked)
    assert found.sample.data.observation.shape == (3, 4, 2) and found.keys.shape == (3, 4)
    for i, batch in enumerate(batches):
        tree.map_structure(
            lambda x, y, i=i: np.testing.assert_array_equal(x[i], y), found.sample.data, batch.sample.data
        )


def test_it_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    whole, other = (TransitionsDataset(make_store(make_agent()), BatchPlan("x", 5), seed=s) for s in (0, 7))
    for _ in range(3):
        next(whole)
    checkpoint.write(tmp_path, 3, {"dataset": whole.save()})
    other.restore(checkpoint.read_latest(tmp_path).state["dataset"])  # type: ignore[union-attr]
    assert other.num_sampled == 15
    for _ in range(3):
        tree.map_structure(np.testing.assert_array_equal, next(other), next(whole))


def test_other_data_are_not_restored_into() -> None:
    saved = TransitionsDataset(make_store(make_agent()), BatchPlan("x", 5)).save()
    for agent in (make_agent(discount=0.6), make_agent(n_step=2)):
        with pytest.raises(CheckpointError, match="same file, discount and n_step"):
            TransitionsDataset(make_store(agent), BatchPlan("x", 5)).restore(saved)
    dataset = TransitionsDataset(make_store(make_agent()), BatchPlan("x", 5))
    with pytest.raises(CheckpointError, match="damaged"):
        dataset.restore({**saved, "rng": {}})


def test_seeds_differ() -> None:
    first, same, other = (
        next(TransitionsDataset(Columns(np.arange(50)), BatchPlan("x", 20), s)).sample.data for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert np.any(first != other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransitionsDataset(Columns(np.zeros(0)), BatchPlan("x", 1)), "at least 1 item"),
        (lambda: TransitionsDataset(Columns(np.zeros(3)), BatchPlan("x", 0)), "at least 1 item"),
        (lambda: Columns((np.zeros(3), np.zeros(4))), r"\[3, 4\]"),
        (lambda: ItemStore(r2d2.make_agent().make_tables(SPEC)[0]), "learns from transitions"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_items_steps_are_checked() -> None:
    (table,) = td3.make_agent().make_tables(SPEC._replace(actions=specs.BoundedArray((1,), np.float32, -1.0, 1.0)))
    writer = ItemStore(table).writer(history=2)
    with pytest.raises(ConfigError, match="'other'"):
        writer.create_item("other", 1.0, 0, 1)
