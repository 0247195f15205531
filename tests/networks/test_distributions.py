"""Distributions against scipy, and their samples against what they say of themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from agentkit.networks import Categorical, DiagonalNormal

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
def test_categorical():
    probabilities = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], np.float32)
    distribution = Categorical(jnp.log(probabilities) + 3.0)
    np.testing.assert_allclose(distribution.log_prob(jnp.array([1, 2])), np.log([0.5, 0.8]), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), [stats.entropy(p) for p in probabilities], rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), [1, 2])
    samples = jax.vmap(distribution.sample)(jax.random.split(KEY, 20_000))  # [n, 2]
    assert samples.dtype == jnp.int32
    for i, p in enumerate(probabilities):
        np.testing.assert_allclose(np.bincount(samples[:, i], minlength=3) / 20_000, p, atol=0.015)


def test_uniform_is_as_uncertain_as_can_be():
    np.testing.assert_allclose(Categorical(jnp.zeros((1, 4))).entropy(), np.log(4), rtol=1e-6)


@pytest.mark.full
def test_diagonal_normal():
    mean, std = np.array([[0.5, -1.0]], np.float32), np.array([[0.5, 2.0]], np.float32)
    distribution = DiagonalNormal(jnp.asarray(mean), jnp.log(std))
    sample = np.array([[0.1, 3.0]], np.float32)
    expected = stats.norm.logpdf(sample, mean, std).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(jnp.asarray(sample)), expected, rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), stats.norm.entropy(mean, std).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), mean)
    samples = jax.vmap(distribution.sample)(jax.random.split(KEY, 20_000))[:, 0]
    np.testing.assert_allclose(samples.mean(0), mean[0], atol=0.05)
    np.testing.assert_allclose(samples.std(0), std[0], rtol=0.03)


def test_the_kl_of_categoricals():
    p, q = np.array([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]), np.array([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]])
    found = Categorical(jnp.log(p) + 3.0).kl(Categorical(jnp.log(q) - 1.0))
    np.testing.assert_allclose(found, [stats.entropy(*pair) for pair in zip(p, q, strict=True)], rtol=1e-5, atol=1e-7)


def test_the_kl_of_gaussians_by_an_integral():
    mean, std = np.array([[0.5, -1.0], [0.1, 0.2]]), np.array([[0.5, 2.0], [1.0, 0.7]])
    x = np.linspace(-30.0, 30.0, 200_001)[:, None]
    log_p, log_q = (stats.norm.logpdf(x, mean[i], std[i]) for i in (0, 1))
    expected = np.sum(np.exp(log_p) * (log_p - log_q)) * (x[1, 0] - x[0, 0])
    p, q = (DiagonalNormal(jnp.asarray(mean[i]), jnp.log(std[i])) for i in (0, 1))
    np.testing.assert_allclose(p.kl(q), expected, rtol=1e-4)
    assert p.kl(p) == 0.0
