"""Priorities of new losses: none that replay refuses, and none that keeps an item from being drawn again."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import c51, d4pg, rainbow
from agentkit.agents.common.experience import ReplayConfig
from agentkit.agents.common.prioritized import PRIORITY_EPSILON, importance_weighted_loss
from agentkit.replay.base import check_priorities
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents.target_state import state_of_targets

INFO = SampleInfo(np.full(64, 1 / 64), np.full(64, 64), np.ones(64), np.ones(64, np.int32))


def still(observation: Any, action: Any) -> ReplaySample:
    """Transitions that stay where they are, without a reward: the target is the critic's own output there."""
    zero, one = np.zeros(64, np.float32), np.ones(64, np.float32)
    return ReplaySample(INFO, Transition(observation, action, zero, one, observation))


def of_values(agent: Any, *key: None) -> np.ndarray:
    """Of a network of distributions; Rainbow's takes a key, too, and without one has no noise."""
    spec = specs.make_environment_spec(envs.make("agentkit:catch"))
    networks = agent.make_networks(spec)
    params = jax.jit(networks.init)(jax.random.PRNGKey(0))
    observation = np.random.default_rng(0).normal(size=(64, *spec.observations.shape)).astype(np.float32)
    q_values = jax.jit(lambda params, o: networks.q_values(networks.logits(params, *key, o), o))
    best = np.argmax(q_values(params, observation), -1)
    loss = jax.jit(agent.make_update.make_loss(networks, agent.config))
    return np.asarray(
        loss(params, state_of_targets(params), still(observation, best), jax.random.PRNGKey(1)).priorities
    )


def of_d4pg() -> np.ndarray:
    agent = d4pg.make_agent(d4pg.Config(prioritized=True))
    spec = specs.make_environment_spec(envs.make("agentkit:point_mass"))
    networks = agent.make_networks(spec)
    state = jax.jit(agent.make_update(networks).init)(jax.random.PRNGKey(0))
    observation = np.random.default_rng(0).normal(size=(64, *spec.observations.shape)).astype(np.float32)
    batch = still(observation, jax.jit(networks.policy.apply)(state.policy, observation))
    output = jax.jit(d4pg.make_losses(networks, agent.config).critic)(state.critic, state, batch, jax.random.PRNGKey(1))
    return np.asarray(output.priorities)


@pytest.mark.parametrize(
    "priorities",
    [
        lambda: of_values(c51.make_agent(c51.Config(prioritized=True))),
        pytest.param(lambda: of_values(rainbow.make_agent(rainbow.Config(noise=0.0)), None), marks=pytest.mark.full),
        of_d4pg,
    ],
    ids=["c51", "rainbow", "d4pg"],
)
def test_a_critic_that_equals_its_target_gives_priorities_that_replay_takes(priorities: Any) -> None:
    found = priorities()
    check_priorities("transitions", np.arange(64), found)
    assert np.all(found >= 0.5 * PRIORITY_EPSILON) and np.all(found < 1e-4)


def test_priorities_are_clipped_and_kept_above_zero() -> None:
    errors = jnp.float32([-8e-8, 0.0, 2.0])
    batch = ReplaySample(SampleInfo(*(x[:3] for x in INFO)), None)
    output = importance_weighted_loss(errors, {}, batch, ReplayConfig(prioritized=True))
    np.testing.assert_allclose(output.priorities, [1e-6, 1e-6, 2.0 + 1e-6], rtol=1e-6)
    np.testing.assert_allclose(output.loss, np.mean(errors), rtol=1e-6)  # the loss itself is not clipped
    nan = importance_weighted_loss(errors, {}, batch, ReplayConfig(prioritized=True), errors.at[1].set(jnp.nan))
    assert np.isnan(nan.priorities[1])  # for replay to refuse
