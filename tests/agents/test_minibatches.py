"""Epochs of minibatches against a loop written out, and where they stop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.agents.common.epochs import means_until, minibatch_orders, rows_at, run_epochs, until
from agentkit.learning import optimizer_step

KEY = jax.random.PRNGKey(1)
# With this key no two minibatches have the same sum.
DATA = {"x": np.float32(2.0) ** np.arange(12, dtype=np.float32), "pair": np.arange(24).reshape(12, 2)}


def step(learned, minibatch, key=None):
    """Remembers what it saw: learned is (how many steps so far, what each saw ``[8, 3]``)."""
    count, seen = learned
    seen = seen.at[count].set(minibatch["x"])
    return (count + 1, seen), {"sum": jnp.sum(minibatch["x"]), "same": jnp.sum(minibatch["pair"][:, 0])}


def jitted(step, **settings):
    """`run_epochs` with these, as a function of what is learned, data and key."""
    return jax.jit(functools.partial(run_epochs, step, **settings))


START = (np.int32(0), np.full((8, 3), -1.0, np.float32))


def epochs():
    (count, seen), metrics = jitted(step, num_epochs=2, num_minibatches=4)(START, DATA, KEY)
    return int(count), np.asarray(seen), {name: float(x) for name, x in metrics.items()}


@functools.partial(jax.jit, static_argnums=0)
def epochs_until(stops, limit):
    """The same, by the loops of PPO."""

    stop = (lambda metrics: metrics["sum"] == limit) if stops else None
    step_until = until(stop, lambda learned, indices: step(learned, rows_at(DATA, indices)))

    def epoch(learned, order):
        return jax.lax.scan(step_until, learned, order)

    orders = minibatch_orders(KEY, 12, num_epochs=2, num_minibatches=4)
    ((count, seen), _), metrics = jax.lax.scan(epoch, (START, jnp.asarray(False)), orders)
    return count, seen, means_until(metrics)


def test_each_epoch_sees_everything_once_in_another_order():
    count, seen, metrics = epochs()
    assert count == 8
    first, second = seen[:4].reshape(-1), seen[4:].reshape(-1)
    np.testing.assert_array_equal(np.sort(first), DATA["x"])
    np.testing.assert_array_equal(np.sort(second), DATA["x"])
    assert np.any(first != second) and np.any(first != DATA["x"])
    assert metrics == pytest.approx({"sum": 4095 / 4, "same": 2 * 66 / 4})


def test_another_key_is_another_order():
    run = jitted(step, num_epochs=2, num_minibatches=4)
    orders = [np.asarray(run(START, DATA, key)[0][1]) for key in jax.random.split(KEY, 2)]
    assert np.any(orders[0] != orders[1])


@pytest.mark.parametrize("size", [1, 2, 5, 1024, 2**16 + 2])  # The last is larger than what is sorted in words.
def test_orders_of_any_size_are_permutations(size):
    data = np.arange(size, dtype=np.int32)
    run = jitted(
        lambda learned, x, key: ((learned[0] + 1, learned[1].at[learned[0]].set(x)), {}),
        num_epochs=2,
        num_minibatches=1,
    )
    seen = np.asarray(run((0, np.zeros((2, size), np.int32)), data, KEY)[0][1])
    np.testing.assert_array_equal(np.sort(seen, axis=1), [data, data])
    assert size < 3 or (np.any(seen[0] != seen[1]) and np.any(seen[0] != data))


def test_every_place_of_an_order_is_equally_likely_for_every_row():
    keys, data = jax.random.split(KEY, 3_000), np.arange(5, dtype=np.int32)
    run = jitted(lambda learned, x, key: (x, {}), num_epochs=1, num_minibatches=1)
    orders = jax.jit(jax.vmap(lambda key: run(data, data, key)[0]))(keys)
    counts = (np.asarray(orders)[:, :, None] == np.arange(5)).sum(axis=0)  # [place, row]
    assert np.all(np.abs(counts - 600) < 110)  # The standard deviation is 22.


def test_each_step_has_a_key_of_its_own():
    run = jitted(
        lambda learned, x, key: ((learned[0] + 1, learned[1].at[learned[0]].set(key)), {}),
        num_epochs=2,
        num_minibatches=4,
    )
    (_, keys), _ = run((0, np.zeros((8, 2), np.uint32)), DATA, KEY)
    assert len(np.unique(np.concatenate([keys, KEY[None]]), axis=0)) == 9


@pytest.mark.parametrize("stop_at", [0, 3, 5, 100, pytest.param(None, marks=pytest.mark.full)])
def test_it_stops_before_the_step_that_is_too_far_and_stays_stopped(stop_at):
    _, whole, _ = epochs()
    stops, stop_at = stop_at is not None, 100 if stop_at is None else stop_at
    limit = whole[stop_at].sum() if stop_at < 8 else 1e9
    count, seen, metrics = epochs_until(stops, limit)
    taken = min(stop_at, 8)
    assert count == taken
    np.testing.assert_array_equal(seen[:taken], whole[:taken])
    assert np.all(seen[taken:] == -1.0)
    looked = min(stop_at + 1, 8)
    assert metrics["epochs"] == looked / 4
    np.testing.assert_allclose(metrics["sum"], whole[:looked].sum() / looked, rtol=1e-6)


def test_an_optimizer_step_scales_the_step_and_keeps_the_optimisers_state():
    """Twice, by momentum worked out by hand: w -= 0.5 * 0.1 * (g + 0.9 m)."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    w = jnp.array([1.0, -2.0])
    learned = optimizer_step(optimizer, w - jnp.array([0.0, 2.0]), w, optimizer.init(w), 0.5)
    np.testing.assert_allclose(learned[0], [1.0 - 0.05, -2.0 + 0.05 * 4.0], rtol=1e-6)
    learned = optimizer_step(optimizer, learned[0], *learned, 0.5)
    momentum = np.array([0.95 + 0.9, -1.8 - 0.9 * 4.0])
    np.testing.assert_allclose(learned[0], np.array([0.95, -1.8]) - 0.05 * momentum, rtol=1e-6)


@pytest.mark.parametrize("size", [1_024, 2**16 + 32])
def test_rows_that_count_are_dealt_out_evenly(size):
    mask = np.zeros(size, np.float32)
    mask[:43] = 1.0
    orders = np.asarray(jax.jit(minibatch_orders, static_argnums=(1, 2, 3))(KEY, size, 3, 32, mask))
    np.testing.assert_array_equal(np.sort(orders.reshape(3, size), axis=1), [np.arange(size)] * 3)
    counts = mask[orders].sum(axis=2)
    assert np.all(np.isin(counts, [1, 2])) and np.any(orders[0] != orders[1])
