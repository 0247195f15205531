"""Conjugate gradients against LAPACK, and products with the Fisher matrix against the matrix written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from agentkit.agents.common.natural_gradient import fisher_vector_product, natural_gradient
from agentkit.networks import Categorical, DiagonalNormal

OBSERVATIONS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


def positive_definite(size, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.5 * np.eye(size), rng.normal(size=size)


def solve(matrix, b, num_iterations, damping=0.25):
    """Where the Fisher matrix is `matrix` less the damping: that of a quadratic divergence."""
    fisher = jnp.asarray(matrix - damping * np.eye(len(b)), jnp.float32)
    gradient = {"a": jnp.asarray(b[:1], jnp.float32), "b": jnp.asarray(b[1:], jnp.float32)}

    def divergence(params):
        x = jnp.concatenate([params["a"], params["b"]])
        return 0.5 * x @ fisher @ x

    start = jax.tree.map(jnp.zeros_like, gradient)
    found = jax.jit(lambda: natural_gradient(divergence, start, gradient, num_iterations, damping))()
    return np.concatenate([found.direction["a"], found.direction["b"]]), found


@pytest.mark.parametrize("size", [1, 2, 8])
def test_it_solves_as_lapack_does(size):
    matrix, b = positive_definite(size)
    x, found = solve(matrix, b, 10 * size)
    right = np.linalg.solve(matrix, b)
    np.testing.assert_allclose(x, right, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.curvature, b @ right, rtol=1e-3)
    assert 0.0 <= found.residual <= 3e-5


def test_each_iterate_is_the_best_of_its_krylov_space():
    """After k products, x minimises the error in the norm of A over the span of b, A b, ..., A^(k-1) b."""
    matrix, b = positive_definite(6)
    for k in range(4):
        x, found = solve(matrix, b, k)
        basis = np.stack([np.linalg.matrix_power(matrix, i) @ b for i in range(k)], axis=1) if k else np.zeros((6, 1))
        best = basis @ np.linalg.lstsq(basis.T @ matrix @ basis, basis.T @ b, rcond=None)[0]
        np.testing.assert_allclose(x, best, rtol=2e-3, atol=1e-3)
        left = np.linalg.norm(b - matrix @ best) / np.linalg.norm(b)
        np.testing.assert_allclose(found.residual, left, rtol=5e-3, atol=1e-4)


def test_it_ends_where_it_is_solved_and_of_nothing_makes_nothing():
    x, _ = solve(2.0 * np.eye(2), np.array([1.0, -4.0]), 1_000)  # Would divide 0 by 0 after one.
    np.testing.assert_array_equal(x, [0.5, -2.0])
    x, found = solve(2.0 * np.eye(2), np.zeros(2), 10)
    np.testing.assert_array_equal(x, [0.0, 0.0])
    assert found.residual == 0.0 and found.curvature == 0.0


def categorical(params):
    return Categorical(jnp.tanh(OBSERVATIONS @ params["w"]) @ params["v"])


def gaussian(params):
    mean = jnp.tanh(OBSERVATIONS @ params["w"]) @ params["v"]
    return DiagonalNormal(mean, jnp.broadcast_to(params["log_std"], mean.shape))


def parameters():
    rng = np.random.default_rng(1)
    shapes = {"w": (3, 2), "v": (2, 4)}
    return {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def categorical_fisher(params):
    """The mean over observations of sum_a pi(a) g_a g_a^T, with g_a the gradient of log pi(a)."""
    flat, to_nest = ravel_pytree(params)
    jacobian = np.asarray(jax.jacobian(lambda x: jax.nn.log_softmax(categorical(to_nest(x)).logits))(flat), np.float64)
    probabilities = np.asarray(jax.nn.softmax(categorical(params).logits), np.float64)
    fisher = np.zeros((flat.size, flat.size))
    for p, gradients in zip(probabilities, jacobian, strict=True):
        for a in range(4):
            fisher += p[a] * np.outer(gradients[a], gradients[a]) / len(OBSERVATIONS)
    return fisher


def gaussian_fisher(params):
    """The mean over observations of J^T diag(1 / sigma^2) J of the means, and 2 for each log sigma."""
    flat, to_nest = ravel_pytree(params)
    mean = np.asarray(jax.jacobian(lambda x: gaussian(to_nest(x)).mean)(flat), np.float64)
    log_std = np.asarray(jax.jacobian(lambda x: to_nest(x)["log_std"])(flat), np.float64)
    precision = np.diag(np.exp(-2.0 * np.asarray(params["log_std"], np.float64)))
    return sum(j.T @ precision @ j for j in mean) / len(OBSERVATIONS) + 2.0 * log_std.T @ log_std


CASES = {
    "categorical": (categorical, categorical_fisher, parameters()),
    "gaussian": (gaussian, gaussian_fisher, {**parameters(), "log_std": jnp.array([0.3, -0.5, 0.0, 0.1])}),
}


def divergence_from(policy, params):
    old = policy(params)
    return lambda new: jnp.mean(old.kl(policy(new)))


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_products_with_the_fisher_matrix(name):
    policy, fisher, params = CASES[name]
    matrix = fisher(params)
    flat, to_nest = ravel_pytree(params)
    assert np.linalg.matrix_rank(matrix, tol=1e-5) > 4
    for column in np.eye(flat.size, dtype=np.float32):
        vector = to_nest(jnp.asarray(column))
        found = fisher_vector_product(divergence_from(policy, params), params, vector)
        assert jax.tree.structure(found) == jax.tree.structure(params)
        np.testing.assert_allclose(ravel_pytree(found)[0], matrix @ column, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_natural_gradient(name):
    policy, fisher, params = CASES[name]
    flat, to_nest = ravel_pytree(params)
    gradient = np.random.default_rng(2).normal(size=flat.size)
    found = natural_gradient(
        divergence_from(policy, params), params, to_nest(jnp.asarray(gradient, jnp.float32)), 200, damping=0.1
    )
    damped = fisher(params) + 0.1 * np.eye(flat.size)
    expected = np.linalg.solve(damped, gradient)
    np.testing.assert_allclose(ravel_pytree(found.direction)[0], expected, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(found.curvature, expected @ damped @ expected, rtol=1e-3)
    assert found.residual < 1e-4
    # A small step's KL is what the curvature says, less what the damping has of it.
    step = jax.tree.map(lambda x, d: x + 1e-2 * d, params, found.direction)
    kl = 0.5e-4 * expected @ fisher(params) @ expected
    np.testing.assert_allclose(divergence_from(policy, params)(step), kl, rtol=0.1)
