"""On-policy agents on whole episodes: what learns from them, and what is refused."""

import types

import dm_env
import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit.adders import EpisodeAdder
from agentkit.agents import impala, reinforce
from agentkit.errors import UnknownNameError
from agentkit.networks import PolicyExtras, policy_extras_spec
from agentkit.testing.adder import RecordingWriter, make_table
from agentkit.testing.adder_cases import SPEC, Episode, observation, steps_of
from agentkit.types import ReplaySample


def test_what_complete_episodes_refuse():
    with pytest.raises(UnknownNameError, match="complete_episodes"):
        reinforce.Config(batch_mode="complete_episode")


AGENTS = {reinforce: {"num_minibatches": 1, "num_value_epochs": 1}, impala: {}}


@pytest.mark.full
@pytest.mark.parametrize("module", AGENTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_padding_is_not_learned_from(module: types.ModuleType) -> None:
    """Two episodes of 3 and 5 steps give the same update with room for 6 steps and for 9."""
    extras_spec = policy_extras_spec(SPEC.actions)

    def updated(length):
        config = module.Config(hidden_sizes=(), batch_mode="complete_episodes", segment_length=length, **AGENTS[module])
        agent = module.make_agent(config)
        writer = RecordingWriter([make_table(EpisodeAdder.layout(SPEC, length, extras_spec))], EpisodeAdder.history())
        adder = EpisodeAdder(writer, SPEC, tables="table", length=length, extras_spec=extras_spec)
        for episode in (Episode([1, -2, 3], "truncate"), Episode([2, 0, 1, 0, -3], offset=2)):
            adder.add_first(dm_env.restart(observation(episode.offset)))
            for action, timestep, _ in steps_of(episode):
                adder.add(action, timestep, PolicyExtras(action, np.float32(-2.0)))
        data = tree.map_structure(lambda *leaves: np.stack(leaves), *[item.data for item in writer.items])
        update = agent.make_update(agent.make_networks(SPEC))
        state = jax.jit(update.init)(jax.random.PRNGKey(0))
        before = update.variables(state)["policy"]
        state, output = jax.jit(update.update)(state, ReplaySample((), data, np.int32(0)))
        return before, update.variables(state)["policy"], output.metrics

    (before, tight, metrics), (_, roomy, others) = updated(6), updated(9)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), tight, roomy)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), metrics, others)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(*map(jax.tree.leaves, (before, tight)), strict=True))


@pytest.mark.full
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
