import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import losses
from agentkit.agents.common.prioritized import importance_weights

Q = np.array([[1.0, 2.0], [3.0, -1.0], [0.0, 5.0]], np.float32)
ACTION = np.array([1, 0, 0], np.int32)
REWARD = np.array([0.5, -1.0, 2.0], np.float32)
# Terminated, in mid-episode with gamma 0.9, truncated after two steps of gamma 0.9.
DISCOUNT = np.array([0.0, 0.9, 0.81], np.float32)
Q_TARGET = np.array([[10.0, 20.0], [4.0, 2.0], [-1.0, -3.0]], np.float32)
Q_SELECTOR = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], np.float32)


def test_q_learning_by_hand() -> None:
    errors = losses.q_learning_error(Q, ACTION, REWARD, DISCOUNT, Q_TARGET)
    np.testing.assert_allclose(errors, [0.5 - 2.0, -1 + 0.9 * 4 - 3, 2 + 0.81 * -1 - 0], rtol=1e-6)


def test_double_q_learning_selects_with_one_network_and_values_with_the_other() -> None:
    errors = losses.double_q_learning_error(Q, ACTION, REWARD, DISCOUNT, Q_TARGET, Q_SELECTOR)
    np.testing.assert_allclose(errors, [0.5 - 2.0, -1 + 0.9 * 2 - 3, 2 + 0.81 * -3 - 0], rtol=1e-6)


def test_with_its_own_selector_double_q_learning_is_q_learning() -> None:
    arguments = (Q, ACTION, REWARD, DISCOUNT, Q_TARGET)
    double = losses.double_q_learning_error(*arguments, Q_TARGET)
    np.testing.assert_array_equal(double, losses.q_learning_error(*arguments))


@pytest.mark.parametrize("double", [True, False])
def test_gradients_reach_the_chosen_action_values_only(double: bool) -> None:
    def loss(q: jax.Array, target: jax.Array, selector: jax.Array) -> jax.Array:
        arguments = (q, ACTION, REWARD, DISCOUNT, target)
        errors = losses.double_q_learning_error(*arguments, selector) if double else losses.q_learning_error(*arguments)
        return jnp.sum(errors)

    by_q, by_target, by_selector = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(Q, Q_TARGET, Q_SELECTOR)
    np.testing.assert_array_equal(by_q, -np.eye(2, dtype=np.float32)[ACTION])
    assert not np.any(by_target) and not np.any(by_selector)


@pytest.mark.parametrize(
    ("error", "delta", "expected"),
    [(0.5, 1.0, 0.125), (-0.5, 1.0, 0.125), (3.0, 1.0, 2.5), (-3.0, 2.0, 4.0), (3.0, None, 4.5), (1.0, 1.0, 0.5)],
)
def test_huber_by_hand(error: float, delta: float | None, expected: float) -> None:
    np.testing.assert_allclose(losses.huber(jnp.array([error]), delta), [expected], rtol=1e-6)


def test_hubers_gradient_is_the_clipped_error() -> None:
    errors = np.array([-5.0, -0.5, 0.0, 0.3, 2.0], np.float32)
    gradients = jax.jit(jax.grad(lambda e: jnp.sum(losses.huber(e, 1.0))))(errors)
    np.testing.assert_allclose(gradients, np.clip(errors, -1, 1), rtol=1e-6)


def test_importance_weights_by_hand() -> None:
    probability, size = np.array([0.5, 0.25, 0.05]), np.array([4, 4, 4])
    expected = np.array([2.0, 1.0, 0.2]) ** -0.5
    weights = importance_weights(probability, size, 0.5)
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-6)
    assert float(weights.max()) == 1.0
    np.testing.assert_array_equal(importance_weights(probability, size, 0.0), np.ones(3))


def test_full_importance_weights_undo_the_sampling() -> None:
    """The weighted mean over draws is the uniform mean, up to the weights' common scale."""
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.1, 1, 10)
    probability /= probability.sum()
    values = rng.normal(size=10)
    weights = np.asarray(importance_weights(probability, np.full(10, 10), 1.0))
    scale = weights[0] * probability[0] * 10
    np.testing.assert_allclose(np.sum(probability * weights * values) / scale, values.mean(), rtol=1e-5)


def test_the_munchausen_error_is_the_papers_sum_over_actions() -> None:
    tau, alpha, least = 0.5, 0.9, -1.0
    q_target_tm1 = np.array([[0.0, 0.3], [-9.0, 4.0], [2.0, 2.0]], np.float32)

    def log_pi(q: np.ndarray) -> np.ndarray:
        scaled = q.astype(np.float64) / tau
        return scaled - np.log(np.exp(scaled).sum())

    expected = []
    for i in range(3):
        bonus = min(max(tau * log_pi(q_target_tm1[i])[ACTION[i]], least), 0.0)
        after = log_pi(Q_TARGET[i])
        soft = sum(np.exp(lp) * (q - tau * lp) for lp, q in zip(after, Q_TARGET[i], strict=True))
        expected.append(REWARD[i] + alpha * bonus + DISCOUNT[i] * soft - Q[i, ACTION[i]])
    assert min(tau * log_pi(q_target_tm1[1])) < least  # One is cut off.

    @jax.jit
    def errors(q: np.ndarray, before: np.ndarray, after: np.ndarray) -> jax.Array:
        settings = {"temperature": tau, "munchausen_coefficient": alpha, "log_policy_clip": least}
        return losses.munchausen_error(q, ACTION, REWARD, DISCOUNT, before, after, **settings)

    np.testing.assert_allclose(errors(Q, q_target_tm1, Q_TARGET), expected, rtol=1e-5)
    by_q, *others = jax.jit(jax.grad(lambda *q: jnp.sum(errors(*q)), argnums=(0, 1, 2)))(Q, q_target_tm1, Q_TARGET)
    np.testing.assert_array_equal(by_q, -np.eye(2, dtype=np.float32)[ACTION])
    assert not any(np.any(gradient) for gradient in others)


def test_cold_and_without_a_bonus_the_munchausen_error_is_q_learnings() -> None:
    settings = {"temperature": 1e-3, "munchausen_coefficient": 0.0, "log_policy_clip": -1.0}
    errors = jax.jit(losses.munchausen_error)(Q, ACTION, REWARD, DISCOUNT, Q, Q_TARGET, **settings)
    np.testing.assert_allclose(errors, losses.q_learning_error(Q, ACTION, REWARD, DISCOUNT, Q_TARGET), rtol=1e-5)
