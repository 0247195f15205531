import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from agentkit import networks
from agentkit.networks import TanhNormal

KEY = jax.random.PRNGKey(0)


def _density(action: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Change of variables: p(a) = N(artanh(a)) / (1 - a^2)."""
    return stats.norm.pdf(np.arctanh(action), mean, std) / (1 - action**2)


def test_the_oracle_is_a_density() -> None:
    total, _ = integrate.quad(lambda a: _density(a, 0.3, 0.7), -1, 1)
    assert abs(total - 1) < 1e-6


@pytest.mark.full
def test_log_prob_is_the_change_of_variables_summed_over_dimensions() -> None:
    mean, log_std = np.array([0.3, -1.0, 0.0], np.float32), np.log(np.array([0.7, 0.2, 1.5], np.float32))
    distribution = TanhNormal(jnp.tile(mean, (200, 1)), jnp.tile(log_std, (200, 1)))
    action, log_prob = networks.sample_and_log_prob(distribution, KEY)
    assert action.shape == (200, 3) and log_prob.shape == (200,)
    action = np.asarray(action, np.float64)
    inside = np.all(np.abs(action) < 0.999, axis=-1)  # Nearer the bounds artanh of a float32 is coarse.
    assert inside.sum() > 150
    expected = np.log(_density(action, mean, np.exp(log_std))).sum(-1)
    np.testing.assert_allclose(log_prob[inside], expected[inside], rtol=1e-3, atol=1e-3)


def test_samples_follow_the_distribution() -> None:
    distribution = TanhNormal(jnp.full((4_000, 1), 0.5), jnp.full((4_000, 1), -0.5))
    action = np.asarray(networks.sample(distribution, KEY))[:, 0]
    assert np.all(np.abs(action) < 1)
    assert stats.kstest(np.arctanh(action), "norm", (0.5, np.exp(-0.5))).pvalue > 1e-4


def test_both_ways_to_sample_agree_and_keys_matter() -> None:
    distribution = TanhNormal(jnp.zeros(3), jnp.zeros(3))
    np.testing.assert_array_equal(
        networks.sample(distribution, KEY), networks.sample_and_log_prob(distribution, KEY)[0]
    )
    assert np.all(networks.sample(distribution, KEY) != networks.sample(distribution, jax.random.PRNGKey(1)))


@pytest.mark.parametrize("mean", [-100.0, 100.0])
def test_far_out_nothing_overflows(mean: float) -> None:
    def loss(m: jax.Array, s: jax.Array) -> jax.Array:
        action, log_prob = networks.sample_and_log_prob(TanhNormal(m, s), KEY)
        return jnp.sum(action) + log_prob

    for log_std in (-10.0, 2.0):
        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(jnp.full(2, mean), jnp.full(2, log_std))
        assert np.isfinite(value) and np.all(np.isfinite(gradients))


def test_samples_are_reparameterised() -> None:
    def action(m: jax.Array) -> jax.Array:
        return networks.sample(TanhNormal(m, jnp.zeros(1)), KEY)[0]

    mean = jnp.array([0.2])
    np.testing.assert_allclose(jax.grad(action)(mean), [1 - action(mean) ** 2], rtol=1e-5)


def test_the_mode_is_tanh_of_the_mean() -> None:
    mean = np.array([0.0, 1.0, -2.0], np.float32)
    np.testing.assert_allclose(networks.mode(TanhNormal(mean, np.zeros(3))), np.tanh(mean), rtol=1e-6)
