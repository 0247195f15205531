"""Sampling policies: what is drawn and stored, the memory, and observations as published statistics normalise them."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import PolicyVariables, stochastic_policy, with_normalized_observations

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(0)
SCALAR = specs.Array((), np.float32)
SPEC = specs.EnvironmentSpec(
    specs.Array((3,), np.float32), specs.BoundedArray((2,), np.float32, 0.0, 10.0), SCALAR, SCALAR
)
OBSERVATION = np.float32([1.0, -2.0, 0.5])


def make(core_size: int | None) -> nets.PolicyValue:
    return nets.recurrent_policy_value(SPEC, (8,), 0.7, core_size)


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("core_size", [None, 4])
def test_it_samples_and_says_with_which_density(core_size: int | None) -> None:
    networks = make(core_size)
    params, policy = networks.init(KEY), stochastic_policy(networks)
    core = jax.tree.map(lambda x: x + 0.3, policy.init(KEY))
    draw = jax.vmap(lambda key: policy.act(params, key, OBSERVATION, core))
    action, _, stored = draw(jax.random.split(KEY, 4_000))
    (distribution, _), _ = nets.step_one(networks.network, params, OBSERVATION, core)
    np.testing.assert_allclose(stored.sample.mean(0), distribution.mean, atol=0.05)
    np.testing.assert_allclose(stored.sample.std(0), 0.7, atol=0.03)
    np.testing.assert_allclose(stored.log_prob, jax.vmap(distribution.log_prob)(stored.sample), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(action, 5.0 + 5.0 * np.clip(stored.sample, -1.0, 1.0), rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), stored.core, core)


def test_in_evaluation_it_takes_the_mode_and_stores_nothing() -> None:
    networks = make(None)
    params = networks.init(KEY)
    distribution, _ = networks.apply(params, OBSERVATION[None])
    for key in jax.random.split(KEY, 2):
        action, _, stored = stochastic_policy(networks, evaluation=True).act(params, key, OBSERVATION, ())
        np.testing.assert_allclose(action, networks.to_action(distribution.mode()[0]), rtol=1e-5)
        assert stored == ()


@pytest.mark.full
def test_the_memory_goes_along_and_begins_anew_with_an_episode() -> None:
    networks = make(4)
    params, policy = networks.init(KEY), stochastic_policy(networks)
    first = policy.init(KEY)
    assert [np.any(x != 0) for x in jax.tree.leaves(first)] == [False, False]
    _, second, stored = policy.act(params, KEY, OBSERVATION, first)
    jax.tree.map(np.testing.assert_array_equal, stored.core, first)
    _, third, stored = policy.act(params, KEY, OBSERVATION, second)
    jax.tree.map(np.testing.assert_array_equal, stored.core, second)
    assert all(np.all(a != b) for a, b in zip(jax.tree.leaves(second), jax.tree.leaves(third), strict=True))
    jax.tree.map(np.testing.assert_array_equal, policy.reset(third), first)


@pytest.mark.full
def test_observations_are_seen_as_the_published_statistics_say() -> None:
    networks = make(None)
    params = networks.init(KEY)
    seen = jnp.asarray([[0.0, 0.0, 7.0], [2.0, -4.0, 7.0]])  # Deviations 1, 2 and 0.
    statistics = (nets.update_statistics(nets.init_statistics((3,)), seen),)
    acting = PolicyVariables(params, statistics)
    expected = np.clip((OBSERVATION - [1.0, -2.0, 7.0]) / np.sqrt([1.0, 4.0, 1e-6]), -10, 10)
    np.testing.assert_allclose(acting.normalized(OBSERVATION), expected, rtol=1e-3, atol=1e-5)
    assert acting.normalized(OBSERVATION)[2] == -10.0
    action, _, stored = with_normalized_observations(stochastic_policy(networks)).act(acting, KEY, OBSERVATION, ())
    plain, _, plain_stored = stochastic_policy(networks).act(params, KEY, jnp.asarray(expected, jnp.float32), ())
    np.testing.assert_allclose(action, plain, rtol=1e-4)
    np.testing.assert_allclose(stored.sample, plain_stored.sample, rtol=1e-4)
    _, _, raw = stochastic_policy(networks).act(params, KEY, OBSERVATION, ())
    assert np.all(np.abs(raw.sample - stored.sample) > 1e-3)
    unnormalized = PolicyVariables(params, ())
    _, _, as_they_are = with_normalized_observations(stochastic_policy(networks)).act(
        unnormalized, KEY, OBSERVATION, ()
    )
    np.testing.assert_array_equal(as_they_are.sample, raw.sample)


@pytest.mark.full
def test_acting_loads_neither_losses_nor_learning() -> None:
    code = "import sys, agentkit.actors as a; a.stochastic_policy; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "agentkit.actors.on_policy" in loaded and "jax" in loaded
    assert not {"rlax", "tensorflow", "optax", "agentkit.learning", "agentkit.losses"} & set(loaded)
