"""The distributional losses against plain numpy loops, written from the papers' formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import losses

# Eagerly each of their operations would be a program of its own.
categorical_q_learning_loss = jax.jit(losses.categorical_q_learning_loss)
quantile_q_learning_loss = jax.jit(losses.quantile_q_learning_loss, static_argnums=7)

RNG = np.random.default_rng(0)
B, A, N, M = 7, 3, 5, 4  # M: target quantiles.
ACTION = RNG.integers(0, A, B).astype(np.int32)
REWARD = RNG.normal(size=B).astype(np.float32)
DISCOUNT = np.array([0.0, 0.99, 0.5, 0.9, 0.81, 1.0, 0.3], np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def projected(probs: np.ndarray, reward: float, discount: float, atoms: np.ndarray) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1: each atom's probability goes to its two neighbours."""
    low, high = atoms[0], atoms[-1]
    spacing = (high - low) / (len(atoms) - 1)
    result = np.zeros(len(atoms))
    for probability, atom in zip(probs, atoms, strict=True):
        position = (min(max(reward + discount * atom, low), high) - low) / spacing
        lower, upper = int(np.floor(position)), int(np.ceil(position))
        if lower == upper:
            result[lower] += probability
        else:
            result[lower] += probability * (upper - position)
            result[upper] += probability * (position - lower)
    return result


ATOMS = np.linspace(-2.0, 3.0, N).astype(np.float32)
LOGITS = RNG.normal(size=(B, A, N)).astype(np.float32)
LOGITS_TARGET = (3 * RNG.normal(size=(B, A, N))).astype(np.float32)
SELECTOR = RNG.normal(size=(B, A)).astype(np.float32)


def test_the_categorical_loss_is_the_divergence_from_the_projected_target() -> None:
    expected = []
    for i in range(B):
        target = projected(softmax(LOGITS_TARGET[i, SELECTOR[i].argmax()]), REWARD[i], DISCOUNT[i], ATOMS.astype(float))
        assert target.sum() == pytest.approx(1.0)
        log_p = np.log(softmax(LOGITS[i, ACTION[i]]))
        expected.append(sum(t * (np.log(t) - lp) for t, lp in zip(target, log_p, strict=True) if t > 0))
    arguments = (LOGITS, ACTION, REWARD, DISCOUNT, LOGITS_TARGET, SELECTOR, ATOMS)
    np.testing.assert_allclose(categorical_q_learning_loss(*arguments), expected, rtol=1e-4, atol=1e-6)


def test_a_certain_target_between_two_atoms_is_shared_by_distance() -> None:
    logits = np.full((1, 1, 3), -100.0, np.float32)
    logits[0, 0, 2] = 0.0  # Z_target is 2 for certain, on the atoms 0, 1, 2: the target is 0.25 + 0.5 * 2 = 1.25.
    online = np.log(np.array([[[0.2, 0.5, 0.3]]], np.float32))
    loss = categorical_q_learning_loss(
        online, np.array([0]), np.float32([0.25]), np.float32([0.5]), logits, np.zeros((1, 1)), np.float32([0, 1, 2])
    )
    np.testing.assert_allclose(loss, [0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.3)], rtol=1e-5)


def test_the_categorical_loss_is_zero_where_target_and_prediction_agree() -> None:
    terminal = np.zeros(B, np.float32)
    reward = ATOMS[RNG.integers(0, N, B)]  # Nothing follows: the target is the atom at the reward.
    logits = np.where(ATOMS[None, None, :] == reward[:, None, None], 50.0, 0.0) * np.ones((B, A, 1))
    loss = categorical_q_learning_loss(
        logits.astype(np.float32), ACTION, reward, terminal, LOGITS_TARGET, SELECTOR, ATOMS
    )
    np.testing.assert_allclose(loss, np.zeros(B), atol=1e-5)


def quantile_huber(u: float, tau: float, kappa: float) -> float:
    """Dabney et al. 2018, 1806.06923, eq. 3; with kappa 0, 1710.10044, eq. 8."""
    weight = abs(tau - (1.0 if u < 0 else 0.0))
    if kappa == 0:
        return weight * abs(u)
    huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
    return weight * huber / kappa


QUANTILES = RNG.normal(size=(B, N, A)).astype(np.float32)
TAUS = RNG.uniform(size=(B, N)).astype(np.float32)
QUANTILES_TARGET = (2 * RNG.normal(size=(B, M, A))).astype(np.float32)
QUANTILES_SELECTOR = RNG.normal(size=(B, 6, A)).astype(np.float32)


@pytest.mark.parametrize("kappa", [1.0, 0.25, 0.0])
def test_the_quantile_loss_sums_over_quantiles_and_averages_over_targets(kappa: float) -> None:
    expected = []
    for b in range(B):
        best = QUANTILES_SELECTOR[b].mean(0).argmax()
        loss = 0.0
        for i in range(N):
            for j in range(M):
                target = REWARD[b] + DISCOUNT[b] * QUANTILES_TARGET[b, j, best]
                loss += quantile_huber(target - QUANTILES[b, i, ACTION[b]], TAUS[b, i], kappa) / M
        expected.append(loss)
    arguments = (QUANTILES, TAUS, ACTION, REWARD, DISCOUNT, QUANTILES_TARGET, QUANTILES_SELECTOR)
    np.testing.assert_allclose(quantile_q_learning_loss(*arguments, kappa), expected, rtol=1e-4)


def test_the_quantile_loss_is_least_at_the_quantiles_of_its_targets() -> None:
    """Descent on it, from anywhere, ends at the quantiles of a normal distribution."""
    taus = np.float32([[0.1, 0.5, 0.9]])
    targets = np.sort(np.random.default_rng(1).normal(size=1_001)).astype(np.float32)[None, :, None]

    def loss(quantiles: jax.Array) -> jax.Array:
        rest = (np.array([0]), np.float32([0.0]), np.float32([1.0]), targets, targets)
        return quantile_q_learning_loss(quantiles[None, :, None], taus, *rest, 0.0)[0]

    step = jax.jit(lambda q: q - 0.05 * jax.grad(loss)(q))
    quantiles = jnp.array([3.0, -2.0, 0.0])
    for _ in range(1_500):
        quantiles = step(quantiles)
    np.testing.assert_allclose(quantiles, np.quantile(targets, taus[0]), atol=0.03)


def test_gradients_reach_the_taken_action_of_the_online_network_only() -> None:
    def categorical(logits: jax.Array, target: jax.Array, selector: jax.Array) -> jax.Array:
        return categorical_q_learning_loss(logits, ACTION, REWARD, DISCOUNT, target, selector, ATOMS).sum()

    def quantile(quantiles: jax.Array, target: jax.Array, selector: jax.Array) -> jax.Array:
        return quantile_q_learning_loss(quantiles, TAUS, ACTION, REWARD, DISCOUNT, target, selector, 1.0).sum()

    taken = ACTION[:, None] == np.arange(A)  # [B, A]
    by_online, *others = jax.jit(jax.grad(categorical, argnums=(0, 1, 2)))(LOGITS, LOGITS_TARGET, SELECTOR)
    np.testing.assert_array_equal(np.any(by_online, axis=2), taken)
    assert not any(np.any(gradient) for gradient in others)
    by_online, *others = jax.jit(jax.grad(quantile, argnums=(0, 1, 2)))(QUANTILES, QUANTILES_TARGET, QUANTILES_SELECTOR)
    np.testing.assert_array_equal(np.any(by_online, axis=1), taken)
    assert not any(np.any(gradient) for gradient in others)


def test_the_categorical_gradient_is_that_of_the_papers_cross_entropy() -> None:
    def cross_entropy(logits: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for i in range(B):
            probs = softmax(LOGITS_TARGET[i, SELECTOR[i].argmax()])
            target = projected(probs, REWARD[i], DISCOUNT[i], ATOMS.astype(float)).astype(np.float32)
            total -= jnp.sum(target * jax.nn.log_softmax(logits[i, ACTION[i]]))
        return total

    def divergence(logits: jax.Array) -> jax.Array:
        return categorical_q_learning_loss(logits, ACTION, REWARD, DISCOUNT, LOGITS_TARGET, SELECTOR, ATOMS).sum()

    found, expected = (jax.jit(jax.grad(loss))(LOGITS) for loss in (divergence, cross_entropy))
    np.testing.assert_allclose(found, expected, atol=1e-5)
