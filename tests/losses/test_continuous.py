import jax
import numpy as np

from agentkit import losses

# Eagerly each of its operations would be a program of its own.
smoothed_action = jax.jit(losses.smoothed_action)

KEY = jax.random.PRNGKey(0)


def test_smoothed_actions_have_noise_of_its_size_within_both_bounds() -> None:
    action = np.tile(np.float32([0.0, 0.9, -0.95]), (5_000, 1))
    found = np.asarray(smoothed_action(action, KEY, 0.2, 0.5))
    noise = np.clip(0.2 * np.asarray(jax.random.normal(KEY, action.shape)), -0.5, 0.5)
    np.testing.assert_allclose(found, np.clip(action + noise, -1.0, 1.0), rtol=1e-6)
    assert np.isclose(np.std(found[:, 0]), 0.2, atol=0.01) and np.max(np.abs(found[:, 0])) == 0.5
    assert np.max(found) == 1.0 and np.min(found) == -1.0


def test_without_noise_actions_stay() -> None:
    action = np.float32([[0.5, -1.0]])
    np.testing.assert_array_equal(smoothed_action(action, KEY, 0.0, 0.5), action)
    np.testing.assert_array_equal(smoothed_action(action, KEY, 0.2, 0.0), action)
