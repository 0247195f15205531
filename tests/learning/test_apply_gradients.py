"""Gradients computed by one and applied by another are the update that one alone makes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.errors import ConfigError
from agentkit.learning import adam, apply_gradients, periodic, sgd
from agentkit.types import LossOutput, ReplaySample

pytestmark = pytest.mark.both_stacks


def make_update(optimizer=None, target_update=None):
    def loss(params, state, batch, key):
        errors = batch.data @ params["w"] + params["b"] - 1.0
        noise = jax.random.normal(key, ())
        return LossOutput(jnp.mean(errors**2) + 0.1 * noise * params["b"], {})

    def init(key):
        return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}

    return sgd(loss, init, optimizer or adam(0.1, max_grad_norm=0.5), target_update)


def stacked(grads, *others):
    """A batch of gradients."""
    data = jax.tree.map(lambda *leaves: np.stack(leaves), grads, *others)
    return ReplaySample((), data)


def test_a_gradient_is_that_of_the_loss():
    params = {"w": np.zeros(3, np.float32), "b": np.float32(0.0)}
    batch = ReplaySample((), np.ones((2, 3), np.float32))  # Whose error is -1.
    gradient = make_update().gradient(params, batch, jax.random.PRNGKey(0))
    np.testing.assert_allclose(gradient["w"], [-2.0, -2.0, -2.0], rtol=1e-6)


@pytest.mark.full
def test_the_two_halves_make_the_whole():
    update = make_update()
    whole = halves = update.init(jax.random.PRNGKey(0))
    applied = apply_gradients(update)
    for step in range(5):
        batch = ReplaySample((), np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32))
        key = jax.random.fold_in(halves.key, halves.num_updates)
        grads = update.gradient(update.variables(halves)["policy"], batch, key)
        halves, output = applied.update(halves, stacked(grads))
        whole, expected = update.update(whole, batch)
        np.testing.assert_allclose(output.metrics["grad_norm"], expected.metrics["grad_norm"], rtol=1e-6)
    assert int(halves.num_updates) == 5
    for ours, theirs in zip(jax.tree.leaves(halves), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_batch_of_gradients_is_one_step_along_their_mean():
    update = make_update(optax.sgd(1.0))
    state = update.init(jax.random.PRNGKey(0))
    one = {"w": np.ones(3, np.float32), "b": np.float32(2.0)}
    other = {"w": np.full(3, 3.0, np.float32), "b": np.float32(0.0)}
    new, _ = apply_gradients(update).update(state, stacked(one, other))
    np.testing.assert_allclose(new.params["w"], state.params["w"] - 2.0, rtol=1e-6)
    np.testing.assert_allclose(new.params["b"], state.params["b"] - 1.0, rtol=1e-6)


def test_an_update_with_a_target_network_is_refused():
    update = make_update(target_update=periodic(10))
    assert update.gradient is None and update.apply is None
    with pytest.raises(ConfigError, match="without a target network"):
        apply_gradients(update)
