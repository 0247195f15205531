"""Losses for data alone, against numpy."""

import jax
import numpy as np
import pytest

from agentkit import losses

RNG = np.random.default_rng(0)
Q = RNG.normal(size=(6, 4)).astype(np.float32)
ACTION = RNG.integers(4, size=6).astype(np.int32)


def test_cross_entropy_and_gap_are_log_sum_exp_less_what_was_chosen() -> None:
    expected = np.log(np.sum(np.exp(Q.astype(np.float64)), axis=-1)) - Q[np.arange(6), ACTION]
    np.testing.assert_allclose(losses.action_cross_entropy(Q, ACTION), expected, rtol=1e-5)
    np.testing.assert_allclose(losses.cql_penalty(Q, ACTION), expected, rtol=1e-5)
    assert np.all(np.isfinite(losses.action_cross_entropy(1e4 * Q, ACTION)))


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_the_expectile_loss_has_the_expectile_as_its_minimum(expectile: float) -> None:
    data = RNG.exponential(size=4_000).astype(np.float32)
    grid = np.linspace(0.0, 4.0, 801)
    totals = [np.sum(np.abs(expectile - (data < m)) * (data - m) ** 2) for m in grid]
    loss = jax.jit(losses.expectile_loss)
    found = [float(np.sum(loss(data - np.float32(m), expectile))) for m in grid]
    np.testing.assert_allclose(found, totals, rtol=1e-3)
    best = grid[int(np.argmin(found))]
    above, below = np.sum(np.maximum(data - best, 0)), np.sum(np.maximum(best - data, 0))
    assert abs(above / (above + below) - (1.0 - expectile)) < 0.01
    if expectile == 0.5:
        assert abs(best - data.mean()) < 0.01


def test_weights() -> None:
    advantage = np.float32([-2.0, 0.0, 0.5, 200.0])
    expected = np.minimum(np.exp(np.minimum(advantage / 0.5, 80.0)), 20.0)
    np.testing.assert_allclose(losses.exponential_weights(advantage, 0.5, 20.0), expected, rtol=1e-5)
    np.testing.assert_array_equal(losses.binary_weights(advantage), [0.0, 0.0, 1.0, 1.0])
    for weights in (lambda x: losses.exponential_weights(x, 0.5, 20.0), losses.binary_weights):
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda x, f=weights: f(x).sum()))(advantage), np.zeros(4))


def test_likely_actions() -> None:
    logits = np.log(np.float32([[0.6, 0.3, 0.1], [0.05, 0.75, 0.2]]))
    np.testing.assert_array_equal(losses.bcq_action_mask(logits, 0.4), [[True, True, False], [False, True, False]])
