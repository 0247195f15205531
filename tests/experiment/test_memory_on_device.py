"""What a run on the device takes of its memory is known by shapes alone, and is as much as its arrays then have."""

import dataclasses

import jax
import pytest

import agentkit
from agentkit.agents import registry
from agentkit.errors import ConfigError
from agentkit.experiment.on_device.acting import fill_pool, make_pool
from agentkit.experiment.on_device.build import find_parts, keys_of
from agentkit.experiment.on_device.checks import memory_parts
from agentkit.experiment.on_device.segments import collect
from agentkit.experiment.sweeps.together import make_population
from tests.experiment.on_device_runs import Marked
from tests.experiment.test_on_device import SMALL, plan

WORD = 4  # Bytes of a number; a flag has one.
KEY = keys_of(0)[1]


def found_in(held, *numbers):
    """The bytes of each part that takes any, by the first words of its name."""
    return {part.name: part.num_bytes for part in memory_parts(held, *numbers) if part.num_bytes}


def num_bytes(*nests):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(nests))


@pytest.mark.full
def test_a_run_on_segments_takes_what_its_arrays_do():
    """A2C with 4 units in 4 environments, which fill segments of 5 rows, and a pool of 3 resets."""
    parts = find_parts(plan(Marked(reset_pool=3)))
    loop, environment = parts.make_loop(), parts.environment
    found = found_in(loop.held(KEY))
    row = 6 * WORD + 1  # Observation, action, reward, discount, sample, log-probability; and whether it is a start.
    state_and_step = 6 * WORD  # Time and mark; step type, reward, discount and observation.
    num_params = 2 * (4 + 4) + (4 + 1) + 2 * (4 + 1)
    assert found == {
        "the segments of a round": 4 * (5 + 1) * row,
        "the environments": 4 * (state_and_step + 2 * WORD) + (2 + 2 + 2) * WORD,  # Returns, lengths; keys, counts.
        "the pool of resets": 3 * state_and_step,
        # Parameters and RMSprop's squares; statistics of observations and of returns; key and count.
        "the training state": (2 * num_params + 3 + 3 + 2 + 1) * WORD,
    }
    training, acting = parts.agent.compiled_update.init(KEY), loop.start(KEY).acting

    def fill(training, acting):
        params = parts.agent.update.variables(training)["policy"]
        reset = fill_pool(environment, acting, acting.num_steps)
        segments = collect(environment, parts.agent.pure_policy, params, acting, 5, reset)[1]
        return segments, make_pool(environment, acting.pool_key)

    segments, resets = jax.eval_shape(fill, training, acting)
    assert list(found.values()) == [num_bytes(each) for each in (segments, acting, resets, training)]


@pytest.mark.full
def test_members_with_a_replay_take_what_their_arrays_do():
    """DQN with 4 units in 4 environments, two seeds: each has what its learner got beside the state of all."""
    settings = {"replay_size": 64, "min_replay_size": 8, "batch_size": 4, "n_step": 1, "hidden_sizes": (4,)}
    seed = dataclasses.replace(plan(Marked()), agent=registry.make("dqn", settings), num_envs=4)
    parts = find_parts(seed)
    population = make_population(parts, [seed, dataclasses.replace(seed, seed=1)])[0]
    found = found_in(population.held(), 2)
    num_params = (4 + 4) + 2 * (4 + 1)
    item = 6 * WORD  # Both observations, action, reward, discount; how often it was drawn.
    replay = 64 * item + 4 * (4 * WORD + 1 + WORD) + 3 * WORD  # The newest row of each environment; count and key.
    environments = 4 * 10 * WORD + 4 * WORD  # An epsilon's state of two numbers, too.
    training = (4 * num_params + 4) * WORD  # Parameters, targets, Adam's two; its count, a key and a count.
    assert found == {
        "the replay of 128 items": 2 * replay,
        "the environments": 2 * environments,
        "the training state": 2 * training,
        "a copy of each run's training state": 2 * training,
        "a copy of one run while it is saved": replay + environments + 3 * WORD,  # And its newest metrics.
    }
    population.start()
    states = [population.state_of(i) for i in range(2)]
    trained = [parts.agent.compiled_update.init(keys_of(i)[0]) for i in range(2)]
    real = [num_bytes(*(state.store for state in states)), num_bytes(*(state.acting for state in states))]
    assert list(found.values()) == [*real, num_bytes(trained), num_bytes(trained), num_bytes(states[0])]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 4 * 10**8}, "the segments of a round 530.40, the environments 92.80. Take fewer environments"),
        ({"agent_settings": SMALL | {"hidden_sizes": (10**6, 10**6)}}, "the training state .* Take smaller networks"),
    ],
    ids=["environments", "networks"],
)
def test_what_there_is_no_memory_for_is_refused_before_any_of_it_is_made(tmp_path, settings, message):
    """To make a part of it would end the process."""
    with pytest.raises(ConfigError, match=rf"needs [\d,.]+ GB of memory, and the device has [\d.]+: {message}"):
        agentkit.run(plan(run_directory=tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
