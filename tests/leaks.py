"""Blames a leaked file on the test that leaked it.

A file that nobody closed is found when the garbage collector comes by, in whichever test is running by then, and
with warnings as errors that one fails. To collect after each test would be dear; it is done after a test that has
left more files open than there were.
"""

import gc
import os
import pathlib
import warnings
from collections.abc import Iterator

import pytest

# Of Linux and of macOS; elsewhere nothing is counted.
_OPEN_FILES = next((path for path in (pathlib.Path("/proc/self/fd"), pathlib.Path("/dev/fd")) if path.exists()), None)


def num_open() -> int:
    """Returns how many files, sockets and pipes this process has open."""
    return len(os.listdir(_OPEN_FILES)) if _OPEN_FILES else 0


class Leaks:
    """A plugin: fails a test, in its teardown, that left open what nothing refers to any more."""

    def __init__(self) -> None:
        self._num_open = num_open()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # Around the teardown of fixtures.
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Collects garbage if there is more open than after the last test."""
        result = yield
        if num_open() > self._num_open:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                gc.collect()
            self._num_open = num_open()
            lost = [str(warning.message) for warning in found if issubclass(warning.category, ResourceWarning)]
            assert not lost, f"the test left open: {'; '.join(lost)}"
        self._num_open = num_open()
        return result
