"""The losses of MPO against an oracle in numpy, and what their gradients do."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import norm

from agentkit import losses
from agentkit.networks import DiagonalNormal

NUM_SAMPLES, BATCH, SIZE = 6, 4, 2
BOUNDS = losses.MPOConstraints(0.1, 0.02, 0.003, None)
ETA, ALPHA_MEAN, ALPHA_STD = 0.7, np.array([2.0, 3.0]), np.array([11.0, 13.0])
DUALS = losses.MPODuals(*(np.log(np.float32(x)) for x in (ETA, ALPHA_MEAN, ALPHA_STD, 0.4)))

mpo_loss = jax.jit(losses.mpo_loss)  # Eagerly each of its operations would be a program of its own.
gradients = jax.jit(jax.grad(losses.mpo_loss, argnums=(0, 1, 2, 3, 4), has_aux=True))


def _inputs():
    rng = np.random.default_rng(0)
    policy, target = (
        DiagonalNormal(*(rng.normal(0, 0.5, (BATCH, SIZE)).astype(np.float32) for _ in range(2))) for _ in range(2)
    )
    samples = rng.normal(0, 1.0, (NUM_SAMPLES, BATCH, SIZE)).astype(np.float32)
    return policy, target, samples, rng.normal(0, 2.0, (NUM_SAMPLES, BATCH)).astype(np.float32)


def _gaussian_kl(mean_p, std_p, mean_q, std_q):
    return np.log(std_q / std_p) + (std_p**2 + (mean_p - mean_q) ** 2) / (2 * std_q**2) - 0.5


def _weights(q, eta):
    return np.exp(q / eta - logsumexp(q / eta, axis=0))


def _oracle(policy, target, samples, q, penalty):
    mean, std = np.float64(policy.mean), np.exp(np.float64(policy.log_std))
    mean_t, std_t = np.float64(target.mean), np.exp(np.float64(target.log_std))
    q, samples = np.float64(q), np.float64(samples)
    log_prob = norm.logpdf(samples, mean, std_t).sum(-1) + norm.logpdf(samples, mean_t, std).sum(-1)
    mean_kl, std_kl = _gaussian_kl(mean_t, std_t, mean, std_t), _gaussian_kl(mean_t, std_t, mean_t, std)
    loss = ETA * (0.1 + logsumexp(q / ETA, axis=0) - np.log(NUM_SAMPLES)) - (_weights(q, ETA) * log_prob).sum(0)
    for kl, alpha, bound in ((mean_kl, ALPHA_MEAN, 0.02), (std_kl, ALPHA_STD, 0.003)):
        loss = loss + (alpha * kl + alpha * (bound - kl)).sum(-1)
    if penalty is not None:
        cost = -np.linalg.norm(np.maximum(np.abs(samples) - 1.0, 0.0), axis=-1)
        loss = loss + 0.4 * (penalty + logsumexp(cost / 0.4, axis=0) - np.log(NUM_SAMPLES))
        loss = loss - (_weights(cost, 0.4) * log_prob).sum(0)
    return loss.mean(), mean_kl, std_kl


@pytest.mark.parametrize("penalty", [None, 0.05])
def test_the_loss_is_the_oracles(penalty):
    inputs = _inputs()
    loss, measures = mpo_loss(*inputs, DUALS, BOUNDS._replace(penalty=penalty))
    expected, mean_kl, std_kl = _oracle(*inputs, penalty)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(measures.mean_kl, mean_kl.sum(-1).mean(), rtol=1e-5)
    np.testing.assert_allclose(measures.std_kl, std_kl.sum(-1).mean(), rtol=1e-5)
    weights = _weights(np.float64(inputs[3]), ETA)
    np.testing.assert_allclose(measures.weights_kl, (weights * np.log(weights * NUM_SAMPLES)).sum(0).mean(), rtol=1e-5)


def test_a_sample_of_no_weight_adds_nothing_to_the_weights_kl():
    """exp(-1000) is 0, whose logarithm is none: all weight is on one sample of six."""
    policy, target, samples, q = _inputs()
    q = np.where(np.arange(NUM_SAMPLES)[:, None] == 2, np.float32(700.0), np.zeros_like(q))
    _, measures = mpo_loss(policy, target, samples, q, DUALS, BOUNDS)
    np.testing.assert_allclose(measures.weights_kl, np.log(NUM_SAMPLES), rtol=1e-5)


def test_the_temperatures_gradient_vanishes_where_the_weights_kl_is_its_bound():
    """The dual's minimum, found by scipy, and the KL of the weights that it gives."""
    policy, target, samples, q = _inputs()

    def dual(eta):
        return eta * 0.1 + np.mean(eta * (logsumexp(np.float64(q) / eta, axis=0) - np.log(NUM_SAMPLES)))

    eta = minimize_scalar(dual, bounds=(1e-2, 1e3), method="bounded").x
    duals = DUALS._replace(log_temperature=np.log(np.float32(eta)))
    grads, measures = gradients(policy, target, samples, q, duals, BOUNDS)
    np.testing.assert_allclose(grads[4].log_temperature, 0.0, atol=1e-2)
    np.testing.assert_allclose(measures.weights_kl, 0.1, atol=2e-3)


def test_multipliers_rise_where_their_own_kl_is_above_its_bound_and_fall_where_it_is_below():
    """Dimension 0 of the mean and dimension 1 of the deviation have gone too far, and nothing else has."""
    zeros = np.zeros((BATCH, SIZE), np.float32)
    target = DiagonalNormal(zeros, zeros)
    policy = DiagonalNormal(zeros + np.float32([0.5, 0.0]), zeros + np.float32([0.0, 0.3]))
    _, _, samples, q = _inputs()
    grad = gradients(policy, target, samples, q, DUALS, BOUNDS)[0][4]
    # The loss is minimised: a negative gradient is a multiplier that rises.
    assert np.all(np.sign(grad.log_alpha_mean) == [-1, 1]) and np.all(np.sign(grad.log_alpha_std) == [1, -1])
    np.testing.assert_allclose(grad.log_alpha_mean, ALPHA_MEAN * (0.02 - np.array([0.125, 0.0])), rtol=1e-4)


def test_gradients_reach_the_policy_and_the_duals_only():
    grads, _ = gradients(*_inputs(), DUALS, BOUNDS)
    assert all(np.any(leaf) for leaf in grads[0])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads[1:4]))


def test_mean_and_deviation_are_fitted_apart():
    """The mean's gradient does not see the policy's own deviation, nor the deviation's the mean."""
    policy, target, samples, q = _inputs()

    def grad(policy):
        return gradients(policy, target, samples, q, DUALS, BOUNDS)[0][0]

    before = grad(policy)
    np.testing.assert_array_equal(before.mean, grad(policy._replace(log_std=policy.log_std + 1.0)).mean)
    np.testing.assert_array_equal(before.log_std, grad(policy._replace(mean=policy.mean + 1.0)).log_std)


def test_the_penalty_pulls_samples_back_into_the_bounds():
    zeros = np.zeros((1, 1), np.float32)
    target = DiagonalNormal(zeros, zeros)
    samples = np.float32([-0.5, 3.0])[:, None, None]
    duals = DUALS._replace(log_alpha_mean=np.zeros(1, np.float32), log_alpha_std=np.zeros(1, np.float32))

    def step(penalty):
        q, bounds = np.zeros((2, 1), np.float32), BOUNDS._replace(penalty=penalty)
        grads, _ = gradients(target, target, samples, q, duals, bounds)
        return -float(grads[0].mean[0, 0])

    assert step(None) == pytest.approx(1.25) and step(0.05) < 1.25 + 0.0
