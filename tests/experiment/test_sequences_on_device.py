"""Sequences on the device: the memory of R2D2 in them, and values at truncation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import losses, specs
from agentkit.agents.common.experience import Sequences, SequencesConfig
from agentkit.envs.jax.cartpole import CartPole
from agentkit.experiment.on_device.replay.store import make_keeper
from agentkit.types import ReplaySample, has_action
from tests.experiment.on_device_runs import Endless, assert_equal
from tests.experiment.test_replay_on_device import make_agent, make_parts, twins


def held(store, experience, num_envs):
    """The rows of all sequences that are held, as numpy arrays."""
    look_up = jax.jit(make_keeper(experience, num_envs).look_up)
    return jax.tree.map(np.asarray, look_up(store.recent, ReplaySample((), store.ring.items)).data)


@pytest.mark.full
def test_sequences_have_the_memory_of_r2d2_bit_for_bit():
    agent, environment = make_agent("r2d2", {"replay_size": 11, "core_size": 3}), CartPole(max_steps=6)
    networks = agent.make_networks(specs.make_environment_spec(environment))
    shapes = jax.eval_shape(networks.init, jax.random.PRNGKey(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)
    store, replay = twins(environment, 3, agent.experience, 30, agent.make_policy(networks), params)
    ours, oldest = held(store, agent.experience, 3), int(store.ring.num_inserted) % 11
    assert_equal(jax.tree.map(lambda x: np.roll(x, -oldest, axis=0), ours), replay.contents("sequences")[0])
    memory = jax.tree.leaves(ours.extras)[0]
    assert not memory[ours.start_of_episode == 1].any() and len(np.unique(memory)) > 10


def test_values_at_truncation_do_not_look_at_the_reset():
    """By R2D2's errors of 3 steps: the target is 10, an episode's last step's, too, whose value at the reset is 1e6.

    In the landing tier, since it alone notices that a memory's targets look at the next episode.
    """
    config = SequencesConfig(sequence_length=7, sequence_period=4, replay_size=9, min_replay_size=1)
    experience = Sequences(config)
    _, acting, store, step = make_parts(Endless(at_reset=1e6), 2, experience)
    for _ in range(24):
        acting, _, store = step(acting, store)
    steps = held(store, experience, 2)  # [9, 8, ...]

    @jax.jit
    def errors_of(steps):
        q, discount = jnp.repeat(steps.observation, 2, axis=2), 0.9 * steps.discount[:, :-1]
        given = q[:, :-1], steps.action[:, :-1], steps.reward[:, :-1], discount, q[:, 1:], q[:, 1:]
        mask = has_action(steps.start_of_episode)
        return losses.n_step_double_q_learning_error(*given, mask, n=3, rescaled=False), mask

    errors, mask = (np.asarray(x) for x in errors_of(steps))
    at_start = (mask == 1) & (steps.start_of_episode[:, :-1] == 1)
    np.testing.assert_allclose(errors[at_start], 10.0 - 1e6, atol=0.1)
    np.testing.assert_allclose(errors[(mask == 1) & ~at_start], 0.0, atol=1e-5)
    last = (mask[:, :-1] == 1) & (mask[:, 1:] == 0)  # The next row is the final observation's.
    assert last.sum() > 5 and (steps.observation[:, 1:-1][last] == 10.0).all()
