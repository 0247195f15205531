"""Agents' tests compile thousands of small functions: out of memory before it is short."""

from collections.abc import Iterator

import jax
import psutil
import pytest

MOST_MEMORY = 3e9
"""Bytes of a worker from which on it forgets what it has compiled; without that one grows to 5 GB."""


@pytest.fixture(autouse=True)
def compiled_functions_are_few() -> Iterator[None]:
    yield
    if psutil.Process().memory_info().rss > MOST_MEMORY:
        jax.clear_caches()
