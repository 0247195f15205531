from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks

P, Q = 3, 4


def layer(x: Any) -> Any:
    return networks.NoisyLinear(Q, sigma=0.5)(x)


NETWORK = hk.transform(layer)
PARAMS = NETWORK.init(jax.random.PRNGKey(0), np.zeros((1, P), np.float32))["noisy_linear"]


def noisy_weights(num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """The noise alone: weights ``[D, P, Q]`` and biases ``[D, Q]`` of sigma 1 and mean 0, over draws."""
    params = {
        "noisy_linear": {
            "w": jnp.zeros((P, Q)),
            "b": jnp.zeros(Q),
            "w_sigma": jnp.ones((P, Q)),
            "b_sigma": jnp.ones(Q),
        }
    }
    inputs = np.concatenate([np.zeros((1, P)), np.eye(P)]).astype(np.float32)  # The bias, then bias + row of w.
    keys = jax.random.split(jax.random.PRNGKey(1), num_draws)
    outputs = np.asarray(jax.vmap(lambda key: NETWORK.apply(params, key, inputs))(keys))
    return outputs[:, 1:] - outputs[:, :1], outputs[:, 0]


def test_without_a_key_it_is_the_mean_layer() -> None:
    x = np.random.default_rng(0).normal(size=(5, P)).astype(np.float32)
    y = NETWORK.apply({"noisy_linear": PARAMS}, None, x)
    np.testing.assert_allclose(y, x @ np.asarray(PARAMS["w"]) + np.asarray(PARAMS["b"]), rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_initial_values_are_the_papers() -> None:
    """Section 3.2: means uniform within 1 / sqrt(P), deviations sigma_0 / sqrt(P)."""
    params = NETWORK.init(jax.random.PRNGKey(0), np.zeros((1, 400), np.float32))["noisy_linear"]
    for name in ("w", "b"):
        assert 0.03 < np.abs(params[name]).max() <= 0.05
    assert np.std(params["w"]) == pytest.approx(0.05 / 3**0.5, rel=0.05)  # A uniform distribution's.
    np.testing.assert_allclose(params["w_sigma"], np.full((400, Q), 0.5 / 20), rtol=1e-6)
    np.testing.assert_allclose(params["b_sigma"], np.full(Q, 0.5 / 20), rtol=1e-6)


@pytest.mark.full
def test_the_noise_has_mean_zero_and_the_variance_of_a_factorised_one() -> None:
    """For f(x) = sgn(x) sqrt(|x|): E f^2 = E |x| = sqrt(2 / pi), so that eps_w has its square."""
    w, b = noisy_weights(20_000)
    np.testing.assert_allclose(w.mean(0), np.zeros((P, Q)), atol=0.03)
    np.testing.assert_allclose(b.mean(0), np.zeros(Q), atol=0.03)
    np.testing.assert_allclose(w.var(0), np.full((P, Q), 2 / np.pi), rtol=0.1)
    np.testing.assert_allclose(b.var(0), np.full(Q, (2 / np.pi) ** 0.5), rtol=0.05)


@pytest.mark.full
def test_the_noise_is_factorised() -> None:
    """Each draw's weights are an outer product, whose column factor is the bias noise."""
    w, b = noisy_weights(50)
    singular = np.linalg.svd(w, compute_uv=False)
    assert np.all(singular[:, 1] < 1e-5 * singular[:, 0])
    np.testing.assert_allclose(w[:, 0] * b[:, :1], w[:, 0, :1] * b, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_sigma_scales_the_noise_and_is_learned() -> None:
    x = np.ones((2, P), np.float32)
    key = jax.random.PRNGKey(2)

    def output(sigma: jax.Array) -> jax.Array:
        return NETWORK.apply({"noisy_linear": {**PARAMS, "w_sigma": sigma, "b_sigma": jnp.zeros(Q)}}, key, x)

    zero, one, two = (output(jnp.full((P, Q), value)) for value in (0.0, 1.0, 2.0))
    np.testing.assert_allclose(two - zero, 2 * (one - zero), rtol=1e-4, atol=1e-5)
    assert np.all(np.any(jax.jacobian(output)(jnp.ones((P, Q))), axis=(0, 1)))


def test_a_batch_shares_one_draw_and_each_call_draws_anew() -> None:
    x = np.ones((3, P), np.float32)
    y = NETWORK.apply({"noisy_linear": PARAMS}, jax.random.PRNGKey(3), x)
    np.testing.assert_allclose(y, np.broadcast_to(y[0], y.shape), rtol=1e-6)
    assert np.any(y != NETWORK.apply({"noisy_linear": PARAMS}, jax.random.PRNGKey(4), x))

    def twice(x: Any) -> Any:
        first = networks.NoisyLinear(Q)
        return first(x), first(x)

    twice_network = hk.transform(twice)
    params = twice_network.init(jax.random.PRNGKey(0), x)
    first, second = twice_network.apply(params, jax.random.PRNGKey(3), x)
    assert np.all(first != second)


@pytest.mark.full
def test_all_layers_of_a_noisy_mlp_are_noisy() -> None:
    network = hk.transform(lambda x: networks.noisy_mlp(x, (16, 17), 2, 0.5))
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    params = network.init(jax.random.PRNGKey(0), x)
    assert [value["w"].shape for value in params.values()] == [(5, 16), (16, 17), (17, 2)]
    gradients = jax.grad(lambda p: network.apply(p, jax.random.PRNGKey(1), x).sum())(params)
    assert all(np.any(gradients[name]["w_sigma"]) for name in params)


@pytest.mark.full
def test_duelling_streams_are_identified_for_each_atom() -> None:
    """The mean over actions of an atom's logits is the value stream's: shifting advantages changes nothing."""
    network = hk.transform(lambda x: networks.noisy_duelling_logits(x, 3, 6, (8,), 0.5))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    params = dict(network.init(jax.random.PRNGKey(0), x))
    logits = network.apply(params, None, x)
    assert logits.shape == (4, 3, 6)
    value, advantage = (params[f"noisy_linear_{i}"] for i in (1, 3))
    assert value["b"].shape == (6,) and advantage["b"].shape == (18,)

    def with_bias(name: str, shift: np.ndarray) -> Any:
        changed = {**params, name: {**params[name], "b": params[name]["b"] + shift}}
        return network.apply(changed, None, x)

    shift = np.arange(6, dtype=np.float32)
    np.testing.assert_allclose(with_bias("noisy_linear_1", shift), logits + shift[None, None, :], atol=1e-5)
    np.testing.assert_allclose(with_bias("noisy_linear_3", np.tile(shift, 3)), logits, atol=1e-5)
