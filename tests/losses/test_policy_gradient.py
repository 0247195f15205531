"""Policy gradient formulas against numbers worked out by hand, and against loops in plain numpy."""

import jax
import numpy as np
import pytest
from scipy import stats

from agentkit import losses
from agentkit.types import has_action

GAMMA, LAMBDA = 0.9, 0.8

# Eagerly each of its operations would be a program of its own.
generalized_advantages = jax.jit(losses.generalized_advantages)


def advantages(rewards, discounts, values, first, lambda_=LAMBDA):
    """Of one segment; discounts are the environment's."""
    rows = [np.array([x], np.float32) for x in (rewards, discounts, values)]
    mask = has_action(np.array([first], bool))
    found = generalized_advantages(rows[0], np.float32(GAMMA) * rows[1], rows[2], mask, lambda_)
    return np.asarray(found[0]), np.asarray(mask[0])


def by_hand(episodes, values, lambda_):
    """GAE of each episode on its own, row after row: a sum of errors, each less often discounted than the next.

    `episodes` are (rewards, discount at the end, whether it ends), `values` one for each observation.
    """
    found, at = [], 0
    for rewards, last_discount, ends in episodes:
        v = values[at : at + len(rewards) + 1]
        discount = [GAMMA] * (len(rewards) - 1) + [GAMMA * last_discount]
        errors = [rewards[t] + discount[t] * v[t + 1] - v[t] for t in range(len(rewards))]
        for t in range(len(rewards)):
            weights = np.cumprod([1.0] + [discount[k] * lambda_ for k in range(t, len(rewards) - 1)])
            found.append(float(np.dot(weights, errors[t:])))
        found += [None] if ends else []  # The final observation's row.
        at += len(rewards) + ends
    return found


CASES = {
    "a segment that ends in mid-episode": [([1.0, 2.0, 3.0, 4.0], 1.0, False)],
    "an episode that terminates in the last row but one": [([1.0, 2.0, 3.0], 0.0, True)],
    "an episode that is truncated in the last row but one": [([1.0, 2.0, 3.0], 1.0, True)],
    "a truncation, then another episode": [([1.0, 2.0], 1.0, True), ([-3.0], 1.0, False)],
    "a termination, then another episode": [([1.0, 2.0], 0.0, True), ([-3.0, 5.0], 1.0, False)],
    "two whole episodes and a piece": [([1.0], 0.0, True), ([2.0, 4.0], 1.0, True), ([8.0], 1.0, False)],
    "a last action whose final observation follows the segment": [([5.0], 0.0, True), ([1.0, 1.0], 1.0, False)],
}


@pytest.mark.parametrize("lambda_", [0.0, LAMBDA, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_advantages_are_those_of_each_episode_on_its_own(name, lambda_):
    episodes = CASES[name]
    rewards, discounts, first = [], [], []
    for episode, last_discount, ends in episodes:
        rewards += episode + [0.0] * ends
        discounts += [1.0] * (len(episode) - 1) + [last_discount] + [0.0] * ends
        first += [True] + [False] * (len(episode) - 1 + ends)
    first.append(episodes[-1][2])  # The row behind: the next episode's first observation, or this one's next.
    values = np.random.default_rng(0).normal(size=len(rewards) + 1).astype(np.float32)
    found, mask = advantages(rewards, discounts, values, first, lambda_)
    expected = by_hand(episodes, values, lambda_)
    np.testing.assert_array_equal(mask, [x is not None for x in expected])
    np.testing.assert_allclose(found[mask > 0], [x for x in expected if x is not None], rtol=1e-5, atol=1e-5)


def test_two_steps_worked_out():
    # delta_0 = 1 + 0.9 * 2 - 1 = 1.8 and delta_1 = 1 + 0.9 * 4 - 2 = 2.6; A_0 = 1.8 + 0.72 * 2.6.
    found, _ = advantages([1, 1], [1, 1], [1, 2, 4], [True, False, False])
    np.testing.assert_allclose(found, [3.672, 2.6], rtol=1e-6)


def test_nothing_leaks_from_one_episode_into_another():
    first = [True, False, False, True, False, False, True]
    rows = {"rewards": [1, 2, 0, 3, 4, 0], "discounts": [1, 1, 0, 1, 0, 0], "values": [1, 2, 3, 4, 5, 6, 7]}
    rows["first"] = first
    found, _ = advantages(**rows)
    other, _ = advantages(**{**rows, "rewards": [1, 2, 0, 99, -99, 0], "values": [1, 2, 3, -40, 50, 60, 70]})
    np.testing.assert_array_equal(found[:2], other[:2])
    earlier, _ = advantages(**{**rows, "rewards": [99, -99, 0, 3, 4, 0], "values": [-1, 20, 30, 4, 5, 6, 7]})
    np.testing.assert_array_equal(found[3:5], earlier[3:5])
    assert np.all(found[:2] != earlier[:2]) and np.all(found[3:5] != other[3:5])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # Clipped: nothing is gained beyond 1.2.
        (0.5, 2.0, -1.0, -2.0),  # The way back is open.
        (0.5, -2.0, 1.6, 0.0),  # Clipped: nothing is gained below 0.8.
        (1.5, -2.0, 3.0, 2.0),
    ],
)
def test_clipped_policy_loss(ratio, advantage, loss, slope):
    def one(r):
        return losses.clipped_policy_loss(r[None], np.float32([advantage]), 0.2)[0]

    found, gradient = jax.jit(jax.value_and_grad(one))(np.float32(ratio))
    np.testing.assert_allclose([found, gradient], [loss, slope], rtol=1e-5)


@pytest.mark.parametrize(
    ("value", "epsilon", "loss", "slope"),
    [
        (1.5, None, 0.125, -0.5),
        (1.5, 0.2, 0.32, 0.0),  # Further from the target when clipped, at 1.2: that counts, without a gradient.
        (1.1, 0.2, 0.405, -0.9),
        (3.5, 0.2, 1.125, 1.5),  # Beyond the target and worse than where the clip is.
    ],
)
def test_clipped_value_loss(value, epsilon, loss, slope):
    def one(v):
        return losses.clipped_value_loss(v[None], np.float32([1.0]), np.float32([2.0]), epsilon)[0]

    found, gradient = jax.jit(jax.value_and_grad(one))(np.float32(value))
    np.testing.assert_allclose([found, gradient], [loss, slope], rtol=1e-5, atol=1e-6)


def test_approximate_kl_is_that_of_two_gaussians_on_average():
    sample = np.random.default_rng(0).normal(size=200_000)
    log_ratio = stats.norm.logpdf(sample, 0.1, 1.0) - stats.norm.logpdf(sample)
    estimates = np.asarray(jax.jit(losses.approximate_kl)(log_ratio.astype(np.float32)))
    assert estimates.min() >= 0.0
    np.testing.assert_allclose(estimates.mean(), 0.5 * 0.1**2, rtol=0.02)
    assert losses.approximate_kl(np.zeros(1, np.float32))[0] == 0.0


def test_masked_means_see_nothing_else():
    x, mask = np.float32([1.0, 2.0, 600.0, 3.0]), np.float32([1.0, 1.0, 0.0, 1.0])
    masked_mean = jax.jit(losses.masked_mean)
    assert masked_mean(x, mask) == masked_mean(np.where(mask > 0, x, np.nan), mask) == 2.0
    assert masked_mean(x, np.zeros(4, np.float32)) == 0.0
    normal = np.asarray(jax.jit(losses.standardize)(x, mask))
    np.testing.assert_allclose(normal[np.array([0, 1, 3])], np.array([-1.0, 0.0, 1.0]) / np.sqrt(2 / 3), atol=1e-6)


def test_explained_variance():
    target, mask = np.float32([1.0, 2.0, 3.0, 50.0]), np.float32([1.0, 1.0, 1.0, 0.0])
    explained_variance = jax.jit(losses.explained_variance)
    assert explained_variance(target + np.float32(7.0), target, mask) == 1.0
    assert explained_variance(np.zeros(4, np.float32), target, mask) == 0.0
