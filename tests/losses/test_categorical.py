import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import losses

# Eagerly each of their operations would be a program of its own.
categorical_target, categorical_td_loss = jax.jit(losses.categorical_target), jax.jit(losses.categorical_td_loss)

REWARD = np.array([0.5, -1.0, 2.0], np.float32)
# Terminated, in mid-episode with gamma 0.9, truncated after two steps of gamma 0.9.
DISCOUNT = np.array([0.0, 0.9, 0.81], np.float32)
ATOMS = np.linspace(-3.0, 5.0, 9, dtype=np.float32)


def _projected(values: np.ndarray, probabilities: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Bellemare et al. (2017), algorithm 1, an atom at a time: each value gives to its two neighbours."""
    result = np.zeros(len(atoms))
    step = atoms[1] - atoms[0]
    for value, probability in zip(values, probabilities, strict=True):
        position = (np.clip(value, atoms[0], atoms[-1]) - atoms[0]) / step
        below, above = int(np.floor(position)), int(np.ceil(position))
        if below == above:
            result[below] += probability
        else:
            result[below] += probability * (above - position)
            result[above] += probability * (position - below)
    return result


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_categorical_target_against_a_loop_over_atoms(seed: int) -> None:
    """Rewards that push the distribution over both ends of the atoms, too."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(0, 3, 50).astype(np.float32)
    discount = rng.choice([0.0, 0.5, 0.9, 1.0], 50).astype(np.float32)
    logits = rng.normal(0, 2, (50, 9)).astype(np.float32)
    found = categorical_target(reward, discount, logits, ATOMS)
    rows = zip(reward, discount, _softmax(logits), strict=True)
    expected = [_projected(r + d * ATOMS, p, ATOMS) for r, d, p in rows]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.sum(found, axis=-1), np.ones(50), rtol=1e-5)


def test_within_the_atoms_the_targets_mean_is_the_scalar_target() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (3, 9)).astype(np.float32)
    reward = np.array([0.3, -0.2, 0.0], np.float32)
    discount = np.array([0.0, 0.5, 0.81], np.float32)
    target = np.asarray(categorical_target(reward, discount, logits, ATOMS))
    np.testing.assert_allclose(target @ ATOMS, reward + discount * (_softmax(logits) @ ATOMS), atol=1e-5)


def test_a_terminated_return_is_the_reward_whatever_comes_next() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (2, 9)).astype(np.float32)
    target = categorical_target(np.array([2.0, 2.25], np.float32), np.zeros(2, np.float32), logits, ATOMS)
    expected = np.zeros((2, 9))
    expected[0, 5] = 1.0
    expected[1, 5:7] = 0.75, 0.25
    np.testing.assert_allclose(target, expected, atol=1e-5)
    other = categorical_target(np.array([2.0, 2.25], np.float32), np.zeros(2, np.float32), -logits, ATOMS)
    np.testing.assert_array_equal(other, target)  # To the bit.


def test_the_categorical_loss_is_the_divergence_from_the_target() -> None:
    rng = np.random.default_rng(0)
    logits_tm1, logits_t = rng.normal(0, 2, (2, 3, 9)).astype(np.float32)
    found = categorical_td_loss(logits_tm1, REWARD, DISCOUNT, logits_t, ATOMS)
    target = np.array(
        [_projected(r + d * ATOMS, p, ATOMS) for r, d, p in zip(REWARD, DISCOUNT, _softmax(logits_t), strict=True)]
    )
    log_target = np.log(np.where(target > 0, target, 1.0))
    expected = np.sum(target * (log_target - np.log(_softmax(logits_tm1))), axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.all(np.asarray(found) > 0)


def test_the_categorical_loss_is_zero_where_the_critic_agrees_and_its_gradient_is_the_cross_entropys() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (3, 9)).astype(np.float32)
    still, whole = np.zeros(3, np.float32), np.ones(3, np.float32)
    np.testing.assert_allclose(categorical_td_loss(logits, still, whole, logits, ATOMS), still, atol=1e-5)

    def total(logits_tm1: jax.Array, logits_t: jax.Array) -> jax.Array:
        return jnp.sum(categorical_td_loss(logits_tm1, REWARD, DISCOUNT, logits_t, ATOMS))

    other = np.roll(logits, 1, axis=-1)
    by_tm1, by_t = jax.jit(jax.grad(total, argnums=(0, 1)))(other, logits)
    target = categorical_target(REWARD, DISCOUNT, logits, ATOMS)
    np.testing.assert_allclose(by_tm1, _softmax(other) - target, atol=1e-5)
    assert not np.any(by_t)
