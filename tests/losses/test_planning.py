"""Targets and cross-entropies of agents that learn a model, by loops over rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from agentkit import losses

RNG = np.random.default_rng(0)
REWARD, DISCOUNT = (RNG.uniform(0.2, 1.0, (3, 6)).astype(np.float32) for _ in range(2))
VALUES = RNG.normal(size=(3, 7)).astype(np.float32)
# Ends in mid-episode; the row of an episode's end, and what follows it; nothing but an end.
HAS_ACTION = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.float32)
DISCOUNT[0, 2] = 0.0  # A termination, that no row follows as its end: nothing is added beyond it.


@pytest.mark.parametrize("n", [1, 2, 4, 9])
def test_n_step_targets_go_as_far_as_there_are_actions(n: int) -> None:
    found = np.asarray(jax.jit(losses.n_step_targets, static_argnums=4)(REWARD, DISCOUNT, VALUES, HAS_ACTION, n))
    for row in range(3):
        for t in range(6):
            total, weight, k = 0.0, 1.0, t
            while k < 6 and k < t + n and HAS_ACTION[row, k]:
                total += weight * REWARD[row, k]
                weight *= DISCOUNT[row, k]
                k += 1
            np.testing.assert_allclose(found[row, t], total + weight * VALUES[row, k], rtol=1e-5)


def test_n_step_targets_have_no_gradient() -> None:
    total = jax.grad(lambda *given: jnp.sum(losses.n_step_targets(*given, HAS_ACTION, 2)), argnums=(0, 1, 2))
    slopes = jax.jit(total)(REWARD, DISCOUNT, VALUES)
    assert not any(np.any(slope) for slope in slopes)


def test_a_number_is_shared_among_its_two_nearest_atoms() -> None:
    atoms = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32)
    target = np.array([0.25, -1.0, 1.9, 7.0, -7.0], np.float32)
    shares = np.array(
        [[0, 0, 0.75, 0.25, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0.1, 0.9], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]], np.float32
    )
    logits = RNG.normal(size=(5, 5)).astype(np.float32)
    expected = -np.sum(shares * log_softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(jax.jit(losses.two_hot_cross_entropy)(logits, target, atoms), expected, rtol=1e-4)
    np.testing.assert_allclose(losses.cross_entropy(logits, shares), expected, rtol=1e-4)


def test_a_number_keeps_its_place_among_atoms_that_are_close() -> None:
    atoms = np.linspace(0.0, 0.01, 51, dtype=np.float32)
    logits = np.where(np.arange(51) == 50, 10.0, 0.0).astype(np.float32)
    found = losses.two_hot_cross_entropy(jnp.asarray(logits), jnp.float32(0.00999), atoms)  # 0.95 of the last atom.
    last, other = -log_softmax(logits)[[50, 49]]
    np.testing.assert_allclose(found, 0.95 * last + 0.05 * other, rtol=1e-3)
