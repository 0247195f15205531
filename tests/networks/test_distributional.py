import haiku as hk
import jax
import numpy as np
import pytest

from agentkit import networks

RNG = np.random.default_rng(0)


def test_the_categorical_mean_by_hand() -> None:
    logits = np.log(np.array([[[0.5, 0.25, 0.25], [0.0001, 0.9998, 0.0001]]], np.float32))
    np.testing.assert_allclose(networks.categorical_mean(logits, np.float32([0, 4, 8])), [[3.0, 4.0]], rtol=1e-5)


@pytest.mark.full
def test_action_outputs_are_rows_of_one_linear_layer() -> None:
    network = hk.without_apply_rng(hk.transform(lambda x: networks.action_outputs(x, 3, 5, (4,))))
    x = RNG.normal(size=(2, 6)).astype(np.float32)
    params = jax.tree.map(np.asarray, network.init(jax.random.PRNGKey(0), x))
    hidden = np.maximum(x @ params["linear"]["w"] + params["linear"]["b"], 0)
    expected = hidden @ params["linear_1"]["w"] + params["linear_1"]["b"]
    outputs = network.apply(params, x)
    assert outputs.shape == (2, 3, 5)
    np.testing.assert_allclose(outputs[:, 1], expected[:, 5:10], rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_implicit_quantiles_are_the_papers_formula() -> None:
    """f(psi(x) * phi(tau)) with phi_j(tau) = relu(sum_i cos(pi i tau) w_ij + b_j), written out for each tau."""
    num_cosines = 7
    network = hk.without_apply_rng(
        hk.transform(lambda x, taus: networks.implicit_quantiles(x, taus, 3, (4, 5), num_cosines))
    )
    x, taus = RNG.normal(size=(2, 6)).astype(np.float32), RNG.uniform(size=(2, 8)).astype(np.float32)
    params = network.init(jax.random.PRNGKey(0), x, taus)

    def linear(name: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ np.asarray(params[name]["w"]) + np.asarray(params[name]["b"])

    outputs = network.apply(params, x, taus)
    assert outputs.shape == (2, 8, 3)
    for b in range(2):
        psi = np.maximum(linear("linear", x[b]), 0)
        for n in range(8):
            cosines = np.array([np.cos(np.pi * i * taus[b, n]) for i in range(num_cosines)])
            phi = np.maximum(linear("linear_1", cosines), 0)
            hidden = np.maximum(linear("linear_2", psi * phi), 0)
            np.testing.assert_allclose(outputs[b, n], linear("linear_3", hidden), rtol=1e-3, atol=1e-5)


def test_only_what_counts_is_at_the_edge_of_a_support() -> None:
    values = np.array([[-1.0, 0.985, 0.9, -9e8]], np.float32)
    assert networks.share_at_edge(values, -1.0, 1.0) == 0.75
    assert networks.share_at_edge(values, -1.0, 1.0, networks.is_legal(values)) == np.float32(2 / 3)
    assert networks.share_at_edge(values, -1.0, 1.0, np.zeros_like(values, bool)) == 0.0
