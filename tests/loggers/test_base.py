import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.errors import SpecError
from agentkit.loggers import InMemoryLogger, to_numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (True, 1),
        (0.5, 0.5),
        (None, None),
        (np.float32(0.5), 0.5),
        (np.int64(2**53 + 1), 2**53 + 1),
        (np.bool_(True), 1),
        (np.array([2.0]), 2.0),
        (jnp.float32(0.25), 0.25),
        (jnp.int32(7), 7),
    ],
)
def test_scalars_of_every_kind_become_python_numbers(value, expected):
    number = to_numbers({"x": value})["x"]
    assert number == expected
    assert type(number) in (int, float, type(None))


@pytest.mark.parametrize("value", ["fast", np.zeros(3), jnp.zeros((2, 2)), object(), 1j])
def test_what_is_not_one_number_is_refused_by_name(value):
    with pytest.raises(SpecError, match="'loss': expected one number"):
        to_numbers({"loss": value})


def test_a_logger_is_a_context_manager():
    with InMemoryLogger() as logger:
        logger.write({"steps": 0})
    assert logger.rows == [{"steps": 0}]
