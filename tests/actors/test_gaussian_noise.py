import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.actors import Policy, deterministic_policy, gaussian_noise_policy
from agentkit.actors.step_count import steps_taken
from agentkit.errors import ConfigError

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(0)


def network(params: jax.Array, observation: jax.Array) -> jax.Array:
    """[B, 2] of observations [B, 1]."""
    return params * jnp.concatenate([observation, -observation], axis=-1)


def run(policy: Policy, num_steps: int, observation: float = 0.0) -> np.ndarray:
    """Actions ``[num_steps, 2]``, as an actor takes them."""

    def step(state, key):
        action, state, extras = policy.act(jnp.float32(1.0), key, jnp.full(1, observation), state)
        assert extras == ()
        return state, action

    _, actions = jax.lax.scan(step, policy.init(KEY), jax.random.split(KEY, num_steps))
    return np.asarray(actions)


def test_without_noise_the_action_is_the_networks() -> None:
    np.testing.assert_allclose(run(deterministic_policy(network), 3, observation=0.25), np.tile([0.25, -0.25], (3, 1)))


def test_noise_has_the_spread_asked_for_and_is_independent() -> None:
    actions = run(gaussian_noise_policy(network, (2,), 0.1), 20_000, observation=0.25)
    np.testing.assert_allclose(actions.mean(0), [0.25, -0.25], atol=0.005)
    np.testing.assert_allclose(actions.std(0), [0.1, 0.1], rtol=0.03)
    noise = actions - actions.mean(0)
    assert abs(np.mean(noise[1:, 0] * noise[:-1, 0])) < 0.0005 and abs(np.mean(noise[:, 0] * noise[:, 1])) < 0.0005


@pytest.mark.full
def test_correlated_noise_keeps_its_spread_and_has_the_correlation_asked_for() -> None:
    actions = run(gaussian_noise_policy(network, (2,), 0.1, correlation=0.85), 100_000)
    np.testing.assert_allclose(actions.std(0), [0.1, 0.1], rtol=0.05)
    found = [np.corrcoef(actions[1:, i], actions[:-1, i])[0, 1] for i in range(2)]
    np.testing.assert_allclose(found, [0.85, 0.85], atol=0.02)


def test_actions_stay_in_their_range() -> None:
    actions = run(gaussian_noise_policy(network, (2,), 3.0), 1_000)
    assert actions.min() == -1.0 and actions.max() == 1.0


def test_an_actors_first_actions_are_uniform() -> None:
    actions = run(gaussian_noise_policy(network, (2,), 0.0, num_random_steps=5_000), 5_003, observation=0.25)
    first, later = actions[:5_000], actions[5_000:]
    np.testing.assert_allclose(np.quantile(first, [0.25, 0.5, 0.75], axis=0)[:, 0], [-0.5, 0.0, 0.5], atol=0.05)
    assert first.min() < -0.99 and first.max() > 0.99
    np.testing.assert_allclose(later, np.tile([0.25, -0.25], (3, 1)))


def test_an_episode_begins_without_the_last_ones_noise_and_goes_on_counting() -> None:
    policy = gaussian_noise_policy(network, (2,), 1.0, correlation=0.9)
    _, state, _ = policy.act(jnp.float32(1.0), KEY, jnp.zeros(1), policy.init(KEY))
    assert np.all(np.asarray(state.noise) != 0.0) and int(steps_taken(state.steps)) == 1
    state = policy.reset(state)
    assert not np.any(state.noise) and int(steps_taken(state.steps)) == 1


def test_impossible_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 0, found -0\.1"):
        gaussian_noise_policy(network, (2,), -0.1)
    for correlation in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=rf"in \[0, 1\), found {correlation}"):
            gaussian_noise_policy(network, (2,), 0.1, correlation=correlation)
