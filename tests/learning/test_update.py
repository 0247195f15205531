from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.learning import Linear, adam, optimizer_step, periodic, polyak, sgd, tell_counts
from agentkit.types import LossOutput, ReplaySample

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(3)
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], np.float32)
Y = np.array([1.0, 2.0, -1.0], np.float32)
BATCH = ReplaySample((), {"x": X, "y": Y})


def _init(key: jax.Array) -> dict[str, jax.Array]:
    return {"w": jax.random.normal(key, (2,))}


def _loss(params: Any, state: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
    error = batch.data["x"] @ params["w"] - batch.data["y"]
    target = () if state.target_params == () else state.target_params["w"]
    metrics = {"noise": jax.random.uniform(key), "target": jnp.sum(jnp.asarray(target))}
    return LossOutput(0.5 * jnp.mean(error**2), metrics, jnp.abs(error))


def test_a_step_is_gradient_descent() -> None:
    update = sgd(_loss, _init, optax.sgd(0.1))
    state = update.init(KEY)
    w = np.asarray(state.params["w"], np.float64)
    for number in range(1, 4):
        error = X @ w - Y
        state, output = update.update(state, BATCH)
        gradient = X.T @ error / len(Y)
        np.testing.assert_allclose(output.metrics["loss"], 0.5 * np.mean(error**2), rtol=1e-5)
        np.testing.assert_allclose(output.metrics["grad_norm"], np.linalg.norm(gradient), rtol=1e-5)
        np.testing.assert_allclose(output.priorities, np.abs(error), rtol=1e-4, atol=1e-6)
        w = w - 0.1 * gradient
        np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)
        assert int(state.num_updates) == number
    assert state.target_params == ()
    assert update.variables(state) == {"policy": state.params}


def test_every_update_has_a_key_of_its_own_and_equal_keys_give_equal_runs() -> None:
    def noises(key: jax.Array) -> list[float]:
        update = sgd(_loss, _init, optax.sgd(0.1))
        state, found = update.init(key), []
        for _ in range(5):
            state, output = update.update(state, BATCH)
            found.append(float(output.metrics["noise"]))
        return found

    assert len(set(noises(KEY))) == 5
    assert noises(KEY) == noises(KEY)
    assert not set(noises(KEY)) & set(noises(jax.random.PRNGKey(4)))


def test_targets_start_as_a_copy_and_follow_after_the_update() -> None:
    for follow in (periodic(2), polyak(0.3)):
        update = sgd(_loss, _init, optax.sgd(0.1), follow)
        state = update.init(KEY)
        np.testing.assert_array_equal(state.target_params["w"], state.params["w"])
        target = np.asarray(state.params["w"])
        for number in range(1, 6):
            state, output = update.update(state, BATCH)
            # The loss saw the target as it was before this update.
            np.testing.assert_allclose(output.metrics["target"], target.sum(), rtol=1e-5)
            target = np.asarray(follow(state.params, {"w": target}, number)["w"])
            np.testing.assert_allclose(state.target_params["w"], target, rtol=1e-6)
        assert np.any(target != np.asarray(state.params["w"]))


def test_adam_clips_to_a_global_norm_only_if_told() -> None:
    params, grads = {"a": jnp.zeros(2), "b": jnp.zeros(())}, {"a": jnp.array([300.0, 0.0]), "b": jnp.array(400.0)}
    free, clipped = adam(0.1), adam(0.1, max_grad_norm=5.0)
    expected = optax.adam(0.1)

    def two_steps(optimizer: optax.GradientTransformation, scale: float) -> Any:
        state = optimizer.init(params)
        _, state = optimizer.update(jax.tree.map(lambda g: scale * g, grads), state, params)
        updates, _ = optimizer.update(jax.tree.map(lambda g: g / 500, grads), state, params)
        return updates

    jax.tree.map(np.testing.assert_array_equal, two_steps(free, 1.0), two_steps(expected, 1.0))
    # The norm of grads is 500: clipping to 5 is scaling by 1 / 100. The second step is below the limit.
    jax.tree.map(np.testing.assert_allclose, two_steps(clipped, 1.0), two_steps(expected, 0.01))
    assert float(two_steps(clipped, 1.0)["b"]) != float(two_steps(expected, 1.0)["b"])


def test_adam_in_numpy() -> None:
    """Kingma & Ba's algorithm 1, with an epsilon that matters and a step size that falls with environment steps."""
    beta_1, beta_2, epsilon, steps_per_update = 0.9, 0.999, 0.5, 4
    optimizer = adam(Linear(0.1, 0.02, 16), epsilon=epsilon)
    params, state = {"a": jnp.ones(2), "b": jnp.zeros((1,))}, None
    state = optimizer.init(params)
    value, mean, square = np.array([1.0, 1.0, 0.0]), np.zeros(3), np.zeros(3)
    for number, gradient in enumerate(np.random.default_rng(0).normal(size=(6, 3)), 1):
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        rate = max(0.1 - 0.08 * (number - 1) * steps_per_update / 16, 0.02)
        root = np.sqrt(square / (1 - beta_2**number))
        value = value - 0.5 * rate * mean / (1 - beta_1**number) / (root + epsilon)
        grads = {"a": jnp.asarray(gradient[:2]), "b": jnp.asarray(gradient[2:])}
        state = tell_counts(state, steps=(number - 1) * steps_per_update, updates=())
        params, state = optimizer_step(optimizer, grads, params, state, scale=0.5)
        np.testing.assert_allclose(np.concatenate([params["a"], params["b"]]), value, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [adam(0.1), optax.sgd(0.1)], ids=["adam", "sgd"])
def test_parameters_of_several_dtypes_keep_them(optimizer: optax.GradientTransformation) -> None:
    """A run could not be resumed from them, nor several updates be made in one call."""
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.zeros(())}
    grads = jax.tree.map(jnp.ones_like, params)
    stepped, _ = optimizer_step(optimizer, grads, params, optimizer.init(params), scale=jnp.float32(0.5))
    assert jax.tree.map(lambda x: x.dtype, stepped) == {"w": jnp.bfloat16, "b": jnp.float32}
    np.testing.assert_allclose([float(stepped["w"][0]), float(stepped["b"])], [0.95, -0.05], rtol=4e-3)
