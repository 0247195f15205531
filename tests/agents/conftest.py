"""Agents' tests compile the same small functions again and again: a third of their time, kept on disk here."""

from collections.abc import Iterator

import jax
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
