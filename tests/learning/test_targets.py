import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.errors import ConfigError
from agentkit.learning import periodic, polyak

pytestmark = pytest.mark.both_stacks


def test_periodic_copies_every_third_update() -> None:
    follow = jax.jit(periodic(3))
    target = jnp.zeros(2)
    seen = []
    for num_updates in range(1, 8):
        target = follow(jnp.full(2, float(num_updates)), target, jnp.int32(num_updates))
        seen.append(float(target[0]))
    assert seen == [0, 0, 3, 3, 3, 6, 6]


def test_polyak_against_the_recursion_by_hand() -> None:
    follow = polyak(0.25)
    params, target = {"w": jnp.array([8.0])}, {"w": jnp.array([0.0])}
    seen = []
    for num_updates in range(1, 4):
        target = follow(params, target, num_updates)
        seen.append(float(target["w"][0]))
    assert seen == [2.0, 3.5, 4.625]
    np.testing.assert_array_equal(polyak(1.0)(params, target, 0)["w"], params["w"])


def test_rates_may_be_traced_as_those_of_a_population_are() -> None:
    follow = jax.jit(lambda period, tau: (periodic(period)(2.0, 1.0, jnp.int32(4)), polyak(tau)(2.0, 1.0, 0)))
    assert [float(x) for x in follow(2, 0.25)] == [2.0, 1.25]
    assert [float(x) for x in follow(3, 0.5)] == [1.0, 1.5]


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        periodic(0)
    for tau in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match=r"tau must be in \(0, 1\]"):
            polyak(tau)
