"""Two tiers of tests, told apart by what a test costs: the landing tier, and with ``--full`` all of them.

Without ``--full`` what is marked ``full`` is left out, and of a test that is marked ``one_case`` all cases but the
first. Limits on processor time, of one test and of all, keep the landing tier light. They are for an idle machine; one
that is slower today is measured first, by work that takes a known time.
"""

import os
import time

import numpy as np
import pytest

TEST_SECONDS = 10.0
"""Seconds of processor time that one test of the landing tier may take, its own processes included."""

TIER_SECONDS = 1200.0
"""Seconds of processor time that the landing tier may take on one stack."""

LEFT = pytest.StashKey[list[str]]()
"""Of a session's config: the tests that were selected, and left to ``--full``."""

_COMPILE_SECONDS = 0.2
_OLD_COMPILE_SECONDS = 0.12
"""Seconds of processor time that ``_compile`` takes on an idle machine, and where jax is of 2024, as beside Reverb."""


SAMPLE_SECONDS = 30.0
"""Seconds between two measurements of the machine in a process that runs tests.

After the last test it is idle, and was not while they ran: one landing run failed by 2,600 s on a machine that was 2.7
times slower than idle, and 1.5 times at its end.
"""


def slowness(compilations: int = 3) -> float:
    """Returns how many times slower than an idle CI machine this one is just now, at least 1.

    What is timed is compiling, which tests do most: in slow minutes of a virtual machine memory is slow and arithmetic
    is not, so that tests took three times as long as ever and a loop over square roots exactly as long. Where others
    want its cores, too, threads that wait for one another cost more: beside two busy loops a test took 10 and 19 s of
    processor time that takes 6. So it is also slower by the processes that are more than the cores and the workers of
    this session.
    """
    import jax  # Only where something was dear: few of these processes load jax for it.

    _compile()  # The first prepares what is not compiling: modules, the compiler itself.
    start = time.process_time()
    for _ in range(compilations):
        _compile()
    seconds = (time.process_time() - start) / compilations
    idle = _OLD_COMPILE_SECONDS if jax.__version__.startswith("0.4.") else _COMPILE_SECONDS
    own = max(os.cpu_count() or 1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return max(1.0, seconds / idle) * max(1.0, os.getloadavg()[0] / own)


def _compile() -> None:
    """Compiles a program that no cache has, and leaves none in one."""
    import jax
    import jax.numpy as jnp

    unlike_any = time.time() % 1

    def loss(weights: jax.Array, inputs: jax.Array) -> jax.Array:
        for _ in range(4):
            inputs = jnp.tanh(inputs @ weights + unlike_any)
        return jnp.sum(inputs**2)

    zeros = np.zeros((8, 8), np.float32)
    kept_from = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    try:
        jax.jit(jax.value_and_grad(loss)).lower(zeros, zeros).compile()
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", kept_from)


def add_option(parser: pytest.Parser) -> None:
    """Adds ``--full``."""
    parser.addoption("--full", action="store_true", help="all tests: those marked full, and all cases, too")


@pytest.hookimpl(trylast=True)  # After pytest has selected by marks and words.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the landing tier does without."""
    if config.getoption("--full"):
        return
    kept, left, functions = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        further = item.get_closest_marker("one_case") is not None and function in functions
        if further or item.get_closest_marker("full"):
            left.append(item)
        else:
            functions.add(function)
            kept.append(item)
    config.stash[LEFT] = [item.nodeid for item in left]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def too_dear(seconds: float, limit: float, slow: float | None = None) -> str | None:
    """Returns what to say of processor time above a limit, or None.

    ``slow`` is how slow the machine was meanwhile; without it that is measured now, and only where it matters.
    """
    if seconds <= limit or seconds <= limit * (slow := slow or slowness()):
        return None
    return (
        f"{seconds:.1f} s of processor time, on a machine {slow:.1f} times slower than idle, where the landing tier "
        f"allows {limit:.0f} s: make it lighter, or mark what is dear with pytest.mark.full (CONTRIBUTING.md, Tests)"
    )
