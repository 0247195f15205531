"""Whole episodes as segments: the rows by hand, what learns from them, and what is refused."""

import types

import dm_env
import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit.adders import CompleteEpisodeAdder, SegmentAdder, segment_layout
from agentkit.agents import impala, reinforce
from agentkit.errors import CheckpointError, ConfigError, UnknownNameError
from agentkit.learning.schedules import Linear
from agentkit.networks import PolicyExtras, policy_extras_spec
from agentkit.testing.adder import (
    EXTRAS_SPEC,
    NESTED_SPEC,
    SPEC,
    Episode,
    RecordingWriter,
    make_table,
    observation,
    play,
    steps_of,
)
from agentkit.types import ReplaySample, has_action, has_observation

pytestmark = pytest.mark.one_stack


def adder_of(length, spec=SPEC, extras_spec=()):
    writer = RecordingWriter([make_table(segment_layout(spec, length, extras_spec))], 1)
    return writer, CompleteEpisodeAdder(writer, spec, tables="table", length=length, extras_spec=extras_spec)


def test_an_episode_is_one_item_with_its_final_observation_and_padding():
    writer, adder = adder_of(4)
    play(adder, Episode([1, 2], "truncate"))
    play(adder, Episode([3], "die", offset=50))
    play(adder, Episode([3, 4, 5, 6], offset=7))
    short, full = (item.data for item in writer.items)
    assert short.observation[:, 0].tolist() == [0, 1, 2, 2, 2]
    assert short.action.tolist() == [1, 2, 0, 0, 0] and short.reward.tolist() == [1, 2, 0, 0, 0]
    assert short.discount.tolist() == [1, 1, 0, 0, 0]  # Truncated: its second row bootstraps from the third.
    assert short.start_of_episode.tolist() == [True, False, False, True, True]
    assert has_action(short.start_of_episode[None]).tolist() == [[1, 1, 0, 0]]
    assert has_observation(short.start_of_episode[None]).tolist() == [[1, 1, 1, 0]]
    assert full.observation[:, 0].tolist() == [7, 8, 9, 10, 11] and full.discount.tolist() == [1, 1, 1, 0, 0]
    assert has_action(full.start_of_episode[None]).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("nested", [False, True])
def test_the_rows_are_those_of_a_segment(nested):
    spec = NESTED_SPEC if nested else SPEC
    episode = Episode([1, 2, 3], discount=0.5)
    writer, adder = adder_of(6, spec, EXTRAS_SPEC)
    play(adder, episode, nested=nested, extras=True)
    other = RecordingWriter([make_table(segment_layout(spec, 3, EXTRAS_SPEC))], 1)
    play(
        SegmentAdder(other, spec, tables="table", length=3, extras_spec=EXTRAS_SPEC),
        episode,
        nested=nested,
        extras=True,
    )
    expected = tree.map_structure(lambda x: x[:3], other.items[0].data)
    tree.map_structure(
        np.testing.assert_array_equal, tree.map_structure(lambda x: x[:3], writer.items[0].data), expected
    )


@pytest.mark.parametrize("cut", range(4))
def test_saved_in_mid_episode(cut):
    writer, adder = adder_of(3)
    adder.add_first(dm_env.restart(observation(0)))
    for number, (action, timestep, _) in enumerate(steps_of(Episode([1, 2, 3]))):
        if number == cut:
            state = adder.save()
            _, fresh = adder_of(3)
            adder = CompleteEpisodeAdder(writer, SPEC, tables="table", length=3)
            adder.restore(state)
            with pytest.raises(CheckpointError, match="Resume with the agent"):
                adder_of(3, NESTED_SPEC)[1].restore(state)
            del fresh
        adder.add(action, timestep)
    (item,) = writer.items
    assert item.data.observation[:, 0].tolist() == [0, 1, 2, 3] and item.data.reward.tolist() == [1, 2, 3, 0]


def test_a_longer_episode_and_impossible_settings_are_refused():
    writer, adder = adder_of(2)
    with pytest.raises(ConfigError, match=r"more than 2 steps.*Raise segment_length"):
        play(adder, Episode([1, 2, 3]))
    assert not writer.items
    with pytest.raises(ConfigError, match="length >= 1"):
        adder_of(0)
    with pytest.raises(UnknownNameError, match="complete_episodes"):
        reinforce.Config(batch_mode="complete_episode")
    with pytest.raises(ConfigError, match=r'learning_rate: a schedule cannot count.*by="updates"'):
        reinforce.Config(batch_mode="complete_episodes", learning_rate=Linear(1e-3, 0, 100))
    reinforce.Config(batch_mode="complete_episodes", learning_rate=Linear(1e-3, 0, 100, by="updates"))


AGENTS = {reinforce: {"num_minibatches": 1, "num_value_epochs": 1}, impala: {}}


@pytest.mark.parametrize("module", AGENTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_padding_is_not_learned_from(module: types.ModuleType) -> None:
    """Two episodes of 3 and 5 steps give the same update with room for 6 steps and for 9."""
    extras_spec = policy_extras_spec(SPEC.actions)

    def updated(length):
        config = module.Config(hidden_sizes=(), batch_mode="complete_episodes", segment_length=length, **AGENTS[module])
        agent = module.make_agent(config)
        writer, adder = adder_of(length, SPEC, extras_spec)
        for episode in (Episode([1, -2, 3], "truncate"), Episode([2, 0, 1, 0, -3], offset=2)):
            adder.add_first(dm_env.restart(observation(episode.offset)))
            for action, timestep, _ in steps_of(episode):
                adder.add(action, timestep, PolicyExtras(action, np.float32(-2.0)))
        data = tree.map_structure(lambda *leaves: np.stack(leaves), *[item.data for item in writer.items])
        update = agent.make_update(agent.make_networks(SPEC))
        state = update.init(jax.random.PRNGKey(0))
        before = update.variables(state)["policy"]
        state, output = jax.jit(update.update)(state, ReplaySample((), data, np.int32(0)))
        return before, update.variables(state)["policy"], output.metrics

    (before, tight, metrics), (_, roomy, others) = updated(6), updated(9)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), tight, roomy)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), metrics, others)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(*map(jax.tree.leaves, (before, tight)), strict=True))


def test_reinforce_learns_from_whole_episodes_and_resumes(tmp_path):
    settings = {"hidden_sizes": (4,), "num_minibatches": 1, "num_value_epochs": 1}
    config = reinforce.Config(batch_mode="complete_episodes", segment_length=9, batch_size=4, **settings)
    rows = []

    def run(name, steps, resume=False):
        experiment = agentkit.ExperimentConfig(
            reinforce.make_agent(config),
            "agentkit:catch",
            num_steps=steps,
            num_envs=3,
            run_directory=tmp_path / name,
            evaluation_period=0,
        )
        result = agentkit.run(experiment, resume=resume)
        rows.append(result.updates)
        return result.policy.arrays

    whole = run("whole", 135)
    run("halved", 75)
    halved = run("halved", 135, resume=True)
    assert rows == [3, rows[1], 3] and 1 <= rows[1] <= 2  # 15 episodes of 9 steps, 4 in a batch.
    jax.tree.map(np.testing.assert_array_equal, whole, halved)
