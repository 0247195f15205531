import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.errors import ConfigError
from agentkit.learning.schedules import Cosine, Linear, Piecewise, value_at

pytestmark = pytest.mark.both_stacks

COUNTS = [0, 1, 7, 50, 99, 100, 101, 10_000]


def test_linear_and_cosine_are_optax_s() -> None:
    linear, cosine = Linear(3.0, 1.0, 100), Cosine(3.0, 0.0, 100)
    for count in COUNTS:
        np.testing.assert_allclose(linear(count), optax.linear_schedule(3.0, 1.0, 100)(count), rtol=1e-6)
        np.testing.assert_allclose(cosine(count), optax.cosine_decay_schedule(3.0, 100)(count), rtol=1e-6, atol=1e-6)


def test_cosine_ends_where_it_is_told_to() -> None:
    np.testing.assert_allclose([Cosine(3.0, 1.0, 100)(count) for count in (0, 50, 100, 200)], [3.0, 2.0, 1.0, 1.0])


def test_a_boundary_is_where_the_next_value_begins() -> None:
    schedule = Piecewise((3.0, 2.0, 1.0), (10, 20))
    assert [float(schedule(count)) for count in (0, 9, 10, 19, 20, 21)] == [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    assert [float(jax.jit(schedule)(jnp.int32(count))) for count in (9, 10)] == [3.0, 2.0]


def test_each_schedule_counts_in_its_own_unit() -> None:
    progress = {"steps": 50, "updates": 10}
    assert value_at(0.5, **progress) == 0.5
    assert float(value_at(Linear(0.0, 1.0, 100), **progress)) == 0.5
    assert float(value_at(Linear(0.0, 1.0, 100, by="updates"), **progress)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0.0, 1.0, 0), "above 0, found 0"),
        (lambda: Linear(float("nan"), 1.0, 10), "finite values, found nan"),
        (lambda: Cosine(0.0, float("inf"), 10), "finite values, found inf"),
        (lambda: Cosine(0.0, 1.0, 10, by="hours"), "found 'hours'"),
        (lambda: Piecewise((1.0, 2.0), (10, 20)), "2 values and 2 boundaries"),
        (lambda: Piecewise((1.0, 2.0, 3.0), (20, 10)), "boundaries that rise"),
    ],
)
def test_nonsense_is_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
