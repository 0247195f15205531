"""Agents' tests compile thousands of small functions, many of them again and again: kept on disk, and out of memory."""

from collections.abc import Iterator

import jax
import psutil
import pytest
from jax.experimental.compilation_cache import compilation_cache

SETTINGS = {"jax_persistent_cache_min_compile_time_secs": 0.05, "jax_persistent_cache_min_entry_size_bytes": 0}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX's compilation cache, shared by the workers of a test run, while a file's tests run."""
    folder = tmp_path_factory.getbasetemp().parent / "compiled"
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", *SETTINGS)}
    for name, value in {"jax_compilation_cache_dir": str(folder), **SETTINGS}.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


MOST_MEMORY = 3e9
"""Bytes of a worker from which on it forgets what it has compiled; without that one grows to 5 GB."""


@pytest.fixture(autouse=True)
def compiled_functions_are_few() -> Iterator[None]:
    yield
    if psutil.Process().memory_info().rss > MOST_MEMORY:
        jax.clear_caches()
