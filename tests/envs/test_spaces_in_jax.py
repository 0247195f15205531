"""Spaces of other packages in JAX as specs: bounds, actions within them, and kinds of observations."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import specs
from agentkit.envs.jax.foreign import as_given, spec_of_space, to_bounds
from agentkit.errors import SpecError


def box(low, high, dtype=np.float32, shape=(2,)):
    return types.SimpleNamespace(low=low, high=high, dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-0.5, 0.5, np.int32),  # Were taken for 0 and 0.
        (0, 1e9, np.uint8),
        (-np.inf, np.inf, np.int32),
        (np.nan, 1.0, np.float32),
        (np.float32([0.0, 1.0]), np.float32([1.0, 0.0]), np.float32),
    ],
    ids=["halves", "beyond", "infinite", "NaN", "crossed"],
)
def test_bounds_that_are_none_of_the_dtype_are_refused(low, high, dtype):
    with pytest.raises(SpecError, match=f"a:b: expected bounds of its observation space in {np.dtype(dtype)}, found"):
        spec_of_space(box(low, high, dtype), "observation", "a:b")


def test_bounds_of_the_dtype_stay_and_the_largest_are_none():
    spec = spec_of_space(box(jnp.int32(-3), np.int64(7), np.int32), "observation", "a:b")
    np.testing.assert_array_equal([spec.minimum, spec.maximum], [[-3, -3], [7, 7]])
    spec = spec_of_space(box(-1e39, np.finfo(np.float32).max), "observation", "a:b")
    np.testing.assert_array_equal([spec.minimum, spec.maximum], [[-np.inf] * 2, [np.inf] * 2])


def test_actions_reach_wide_bounds_and_do_not_overflow():
    spec = spec_of_space(box(-2e38, 2e38), "action", "a:b")
    scaled = to_bounds(jnp.float32([-1.0, 0.5]), spec)
    np.testing.assert_allclose(scaled, np.float32([-2e38, 1e38]), rtol=1e-6)
    np.testing.assert_allclose(to_bounds(jnp.float32([-1.0, 1.0]), specs.BoundedArray((2,), np.float32, 0, 5)), [0, 5])


def test_floats_stay_floats_where_a_space_says_whole_numbers():
    seen = jax.ShapeDtypeStruct((2,), np.float32)
    spec = as_given(specs.BoundedArray((2,), np.int32, 0, 5), seen, "a:b")
    assert spec == specs.BoundedArray((2,), np.float32, 0, 5)
    assert as_given(specs.Array((2,), bool), seen, "a:b") == specs.Array((2,), np.float32)
    whole = specs.BoundedArray((2,), np.uint8, 0, 5)
    assert as_given(whole, jax.ShapeDtypeStruct((2,), np.int32), "a:b") is whole
    with pytest.raises(SpecError, match=r"a:b: expected choices of its observation space .*, found float32"):
        as_given(specs.DiscreteArray(3), seen, "a:b")
