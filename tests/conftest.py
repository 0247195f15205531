"""The test session is stricter than production: warnings are errors, rank promotion raises."""

import atexit
import importlib.util
import os
import pathlib
import shutil
import signal
import tempfile

import hypothesis
import pytest

from tests import compile_cache, leaks, margins, report, tiers

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
# Ray gives its workers niceness 15: beside other tests on the same cores they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")
# dm_control picks a renderer when imported; the tests of physics need none.
os.environ.setdefault("MUJOCO_GL", "disabled")

# The same examples each time, and no deadline for one: test machines are busy.
hypothesis.settings.register_profile("agentkit", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("agentkit")

# What a test needs, by its mark. A file that imports it says so before, with pytest.importorskip.
NEEDS = {"reverb": "reverb", "ray": "ray", "tensorflow": "tensorflow"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--full`` and ``--report``."""
    tiers.add_option(parser)
    parser.addoption("--report", metavar="FILE", help="write what each test did and cost to FILE, a line of JSON each")


def pytest_configure(config: pytest.Config) -> None:
    """Adds what chooses the tier, writes reports, and finds leaked files."""
    config.pluginmanager.register(tiers)
    config.pluginmanager.register(report.Report(config))
    config.pluginmanager.register(leaks.Leaks())
    # Started under nohup, or in the background of a script: what tests start inherits that, and some send it these.
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.getoption("--full"):
        config.pluginmanager.register(margins.Margins())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose mark says that it needs what is not installed."""
    for mark, package in NEEDS.items():
        if item.get_closest_marker(mark) and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
