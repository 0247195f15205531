from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks
from agentkit.networks.mlp import orthonormal_rows

KEY = jax.random.PRNGKey(0)


def _run(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Any]:
    network = hk.without_apply_rng(hk.transform(function))
    params = network.init(KEY, *inputs)
    return jax.tree.map(np.asarray, params), network.apply(params, *inputs)


@pytest.mark.full
def test_mlp_is_relu_layers_then_a_linear_one() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    params, y = _run(lambda x: networks.mlp(x, (4, 2), 6), x)
    assert y.shape == (5, 6)
    layers = [params["linear"], params["linear_1"], params["linear_2"]]
    expected = x
    for number, layer in enumerate(layers):
        expected = expected @ layer["w"] + layer["b"]
        expected = np.maximum(expected, 0) if number < 2 else expected
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_orthogonal_weights_keep_lengths_up_to_their_scale() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    params, y = _run(lambda x: networks.orthogonal_mlp(x, (8, 16), 4, output_scale=0.01), x)
    assert y.shape == (5, 4) and float(np.abs(y).max()) < 0.1
    first, second, last = (params[name]["w"] for name in ("linear", "linear_1", "linear_2"))
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(second @ second.T, 2 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(4), atol=1e-8)
    assert np.any(np.abs(first @ second[:, :8] - 2 * np.eye(8)) > 0.1)  # Layers have keys of their own.


@pytest.mark.parametrize(
    ("observation", "num_features"),
    [
        (np.ones((2, 3), np.float32), 3),
        (np.ones(2, np.float32), 1),
        (np.ones((2, 10, 5), np.float32), 50),
        (np.ones((2, 3), np.int32), 3),
        ({"a": np.ones((2, 3), np.float32), "b": (np.ones(2, bool), np.ones((2, 2, 2), np.float64))}, 8),
    ],
)
def test_observations_of_any_kind_become_one_vector(observation: Any, num_features: int) -> None:
    features = networks.torso(observation)
    assert features.shape == (2, num_features) and features.dtype == jnp.float32
    np.testing.assert_array_equal(features, np.ones((2, num_features)))


def test_nested_observations_are_joined_leaf_by_leaf() -> None:
    observation = {"a": np.float32([[1, 2], [3, 4]]), "b": np.float32([5, 6])}
    np.testing.assert_array_equal(networks.torso(observation), [[1, 2, 5], [3, 4, 6]])


@pytest.mark.full
def test_images_go_through_the_convolutions_scaled_to_one() -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4), np.uint8)
    params, features = _run(networks.torso, image)
    assert features.shape == (2, 7 * 7 * 64)  # 84 -> 20 -> 9 -> 7, as in the paper.
    assert params["atari_torso/conv2_d"]["w"].shape == (8, 8, 4, 32)
    network = hk.without_apply_rng(hk.transform(networks.torso))
    np.testing.assert_allclose(network.apply(params, np.zeros_like(image)), 0.0)
    assert 0 < float(jnp.abs(features).max()) < 50


@pytest.mark.full
def test_q_values_are_one_per_action() -> None:
    for head in (networks.q_values, networks.duelling_q_values):
        _, q = _run(lambda x, head=head: head(x, 3, (8,)), np.ones((5, 2), np.float32))
        assert q.shape == (5, 3) and q.dtype == jnp.float32


def test_duelling_streams_are_identified_by_a_mean_advantage_of_zero() -> None:
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    params, q = _run(lambda x: networks.duelling_q_values(x, 3, (8,)), x)

    def stream(first: str, last: str) -> np.ndarray:
        hidden = np.maximum(x @ params[first]["w"] + params[first]["b"], 0)
        return np.asarray(hidden @ params[last]["w"] + params[last]["b"])

    value, advantage = stream("linear", "linear_1"), stream("linear_2", "linear_3")
    assert value.shape == (6, 1) and advantage.shape == (6, 3)
    np.testing.assert_allclose(np.mean(q, axis=1), value[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q, value + advantage - advantage.mean(1, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (1, 4)])
def test_orthonormal_rows_are_those_of_a_qr_decomposition(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    rows = np.asarray(orthonormal_rows(jnp.asarray(matrix)))
    np.testing.assert_allclose(rows @ rows.T, np.eye(shape[0]), atol=1e-6)
    q, r = np.linalg.qr(matrix.T)
    np.testing.assert_allclose(rows, (q * np.sign(np.diag(r))).T, atol=1e-5)


def test_large_and_nearly_dependent_rows_are_orthonormal_too() -> None:
    matrix = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
    matrix[1] = matrix[0] + 1e-5 * matrix[1]
    rows = np.asarray(orthonormal_rows(jnp.asarray(matrix)))
    np.testing.assert_allclose(rows @ rows.T, np.eye(128), atol=1e-5)
