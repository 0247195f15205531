"""The test session is stricter than production: warnings are errors, rank promotion raises."""

import atexit
import os
import pathlib
import shutil
import tempfile
import time

import hypothesis
import pytest

from tests import compile_cache

# One CPU device, whatever the machine has: results then do not depend on where the tests run.
os.environ["JAX_PLATFORMS"] = "cpu"
# jax reads this when it is first imported; tests that never touch jax stay free of it.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# What is compiled is kept on disk, for other workers, tests and processes, and for the next session: most of what
# tests compile are single operations on small shapes, over and over. A test that compares two compilations by their
# bits should turn this off (jax_enable_compilation_cache); runs that are compared share their code in production, too.
if "PYTEST_XDIST_WORKER" not in os.environ:
    compiled, kept = pathlib.Path(tempfile.mkdtemp(prefix="agentkit-compiled-")), compile_cache.kept_folder()
    compile_cache.fill(compiled, kept)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    atexit.register(compile_cache.keep, compiled, kept)  # Before the former: the last registered is called first.
# TensorFlow (with Reverb) prints banners and reserves the accelerator otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("MPLBACKEND", "Agg")
# Ray reads this once in a process, whenever it is first asked; each test then brings its token, or none.
os.environ["RAY_AUTH_MODE"] = "token"
# dm_control picks a renderer when imported; the tests of physics need none.
os.environ.setdefault("MUJOCO_GL", "disabled")

# The same examples each time, and no deadline for one: test machines are busy.
hypothesis.settings.register_profile("agentkit", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("agentkit")

# What says the same on both stacks, and so is marked one_stack: no process, no Reverb, no version of JAX matters there.
# On the Reverb stack each agent is still trained, killed and resumed, in process and on Reverb.
ONE_STACK = (
    "tests/adders/test_episode.py",
    "tests/adders/test_in_process.py",
    "tests/adders/test_sequence.py",
    "tests/adders/test_tee.py",
    "tests/agents/",
    "tests/benchmarks/",
    "tests/cli/test_bad_commands.py",
    "tests/cli/test_main.py",
    "tests/cli/test_offline.py",
    "tests/cli/test_plot.py",
    "tests/cli/test_show.py",
    "tests/cli/test_values.py",
    "tests/datasets/",
    "tests/envs/",
    "tests/experiment/deploy/",
    "tests/cli/test_compare.py",
    "tests/experiment/test_aggregates.py",
    "tests/experiment/test_config_ranges.py",
    "tests/experiment/test_evaluate.py",
    "tests/experiment/test_identity.py",
    "tests/experiment/test_mistakes.py",
    "tests/experiment/test_offline.py",
    "tests/experiment/test_profile.py",
    "tests/experiment/test_recipes.py",
    "tests/experiment/test_run_folder.py",
    "tests/loggers/",
    "tests/losses/",
    "tests/networks/",
    "tests/replay/in_process/",
    "tests/test_",
    "tests/wrappers/",
)
ON_BOTH = (
    "_on_reverb.py",
    "::test_killed_and_resumed",
    "tests/test_checkpoint.py",
    "tests/test_layers.py",
    "launched",
    "savedmodel",
)

# Where one case of a test takes seconds: cases after the first run behind what has only one, with the slow tests.
CASES_TAKE_SECONDS = ("tests/agents/", "tests/envs/", "tests/examples/", "tests/experiment/", "tests/networks/")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the time after which what runs last is left out, for .ci/run on a machine that is slow today."""
    says = "seconds since 1970 after which tests marked later are skipped; by default none is"
    parser.addoption("--later-until", type=float, default=float("inf"), metavar="TIME", help=says)


@pytest.hookimpl(tryfirst=True)  # Before pytest selects by marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is run on one stack only, and what runs behind all else: further cases, then slow tests."""
    places, functions = {}, set()
    for item in items:
        if item.nodeid.startswith(ONE_STACK) and not any(part in item.nodeid for part in ON_BOTH):
            item.add_marker(pytest.mark.one_stack)
        function = item.nodeid.partition("[")[0]
        further = function in functions and function.startswith(CASES_TAKE_SECONDS)
        places[item] = 2 if item.get_closest_marker("slow") else int(further)
        functions.add(function)
        if places[item]:
            item.add_marker(pytest.mark.later)
    items.sort(key=places.__getitem__)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what runs last once its time is up."""
    if item.get_closest_marker("later") and time.time() > item.config.getoption("--later-until"):
        pytest.skip("the time for what runs last was up (--later-until)")
