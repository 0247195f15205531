import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import specs
from agentkit.networks import (
    init_nest_statistics,
    init_statistics,
    normalize,
    normalize_nest,
    update_nest_statistics,
    update_statistics,
)


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 10_000))
def test_batches_of_any_size_give_numpys_mean_and_variance(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.normal(3.0, 2.0, (sum(sizes), 3)).astype(np.float32)
    statistics = init_statistics((3,))
    for batch in np.split(data, np.cumsum(sizes)[:-1]):
        statistics = update_statistics(statistics, jnp.asarray(batch))
    assert float(statistics.count) == len(data)
    np.testing.assert_allclose(statistics.mean, data.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(statistics.squares / len(data), data.var(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, np.float32([1, 1, 0, 1])])
def test_one_nan_does_not_stay_for_ever(mask: np.ndarray | None) -> None:
    """Neither in a row that counts nor in one that does not; all other rows count as ever."""
    data = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    for bad in (2, 3):
        for value in (np.nan, np.inf):
            broken = data.copy()
            broken[bad, 0] = value
            kept = [i for i in range(4) if i != bad and (mask is None or mask[i])]
            found = update_statistics(init_statistics((2,)), jnp.asarray(broken), mask)
            expected = update_statistics(init_statistics((2,)), jnp.asarray(data[kept]))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_a_large_offset_does_not_drown_the_variance() -> None:
    data = (1_000.0 + np.random.default_rng(0).normal(size=(512, 1))).astype(np.float32)
    statistics = init_statistics((1,))
    for batch in np.split(data, 8):
        statistics = update_statistics(statistics, jnp.asarray(batch))
    np.testing.assert_allclose(statistics.squares / 512, data.astype(np.float64).var(0), rtol=1e-3)


@pytest.mark.parametrize("leading", [(), (5,), (2, 5)])
def test_normalised_values_of_any_leading_shape(leading: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).normal(5.0, 3.0, (100, 2)).astype(np.float32)
    statistics = jax.jit(update_statistics)(init_statistics((2,)), data)
    value = np.random.default_rng(1).normal(size=(*leading, 2)).astype(np.float32)
    expected = (value - data.mean(0)) / data.std(0)
    np.testing.assert_allclose(normalize(statistics, value), expected, rtol=1e-4, atol=1e-4)


def test_before_two_values_only_the_mean_is_taken_off() -> None:
    np.testing.assert_allclose(normalize(init_statistics((2,)), np.float32([2, 3])), [2, 3], rtol=1e-5)
    one = update_statistics(init_statistics((2,)), np.float32([[1, 1]]))
    np.testing.assert_allclose(normalize(one, np.float32([2, 3])), [1, 2], rtol=1e-5)


def test_a_constant_stays_finite() -> None:
    statistics = update_statistics(init_statistics(()), jnp.ones(10))
    assert float(normalize(statistics, jnp.float32(1.0))) == 0.0
    assert np.isfinite(normalize(statistics, jnp.float32(2.0)))


def test_what_is_masked_is_left_out() -> None:
    data = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    mask = np.float32([1, 0, 1, 1, 0, 1])
    masked = update_statistics(init_statistics((2,)), jnp.asarray(data), jnp.asarray(mask))
    picked = update_statistics(init_statistics((2,)), jnp.asarray(data[mask > 0]))
    for found, expected in zip(masked, picked, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    nothing = update_statistics(masked, jnp.asarray(data), jnp.zeros(6))
    for found, expected in zip(nothing, masked, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_of_a_nest_only_vectors_of_floats_are_normalised() -> None:
    spec = {
        "choice": specs.DiscreteArray(4),
        "depth": specs.BoundedArray((8, 8, 1), np.float32, 0.0, 255.0),
        "vector": specs.Array((3,), np.float32),
    }
    rng = np.random.default_rng(0)
    batch = {
        "choice": np.arange(6) % 4,
        "depth": np.float32(rng.uniform(0.0, 255.0, (6, 8, 8, 1))),
        "vector": np.float32(rng.normal(50.0, 2.0, (6, 3))),
    }
    statistics = update_nest_statistics(init_nest_statistics(spec), batch)
    assert [bool(each) for each in statistics] == [False, False, True]
    found = normalize_nest(statistics, {name: x[None] for name, x in batch.items()}, 1.5)  # [1, 6, ...]
    for name in ("choice", "depth"):
        np.testing.assert_array_equal(found[name][0], batch[name])
    expected = (batch["vector"] - batch["vector"].mean(0)) / batch["vector"].std(0)
    np.testing.assert_allclose(found["vector"][0], np.clip(expected, -1.5, 1.5), rtol=1e-4, atol=1e-4)
    assert normalize_nest((), batch, 1.5) is batch and update_nest_statistics((), batch) == ()
