"""Numbers that are not finite are found on every device, in every type of float."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.learning import finite

pytestmark = pytest.mark.both_stacks


@pytest.mark.parametrize("number", [1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_cpu_looks_for_what_other_devices_do(number: float, dtype: str) -> None:
    nest = {"count": jnp.array(3), "weights": [jnp.zeros(4), jnp.array([0.0, number]).astype(dtype)]}
    assert finite.all_finite(nest) == bool(finite._all_finite(nest)) == bool(np.isfinite(number))


def test_without_floats_there_is_nothing_to_find() -> None:
    assert finite.all_finite({"count": jnp.array(3)}) and finite._all_finite({"count": jnp.array(3)})
