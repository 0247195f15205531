"""A file that a test leaves open is that test's fault, and not of the one that runs when it is found."""

import gc
import pathlib

import pytest

from tests.leaks import Leaks


class Holder:
    """Refers to itself: the garbage collector alone finds it, and the file that it has open."""

    def __init__(self, path: pathlib.Path):
        self.itself, self.file = self, open(path, "w")  # noqa: SIM115


@pytest.mark.full
def test_what_nothing_refers_to_fails_the_test_and_what_is_kept_does_not(tmp_path: pathlib.Path) -> None:
    gc.collect()
    leaks = Leaks()

    def end() -> None:
        teardown = leaks.pytest_runtest_teardown()
        next(teardown)
        with pytest.raises(StopIteration):
            teardown.send(None)

    kept = Holder(tmp_path / "kept")  # Such as a fixture of the module.
    end()
    Holder(tmp_path / "lost")
    with pytest.raises(AssertionError, match=r"^the test left open: unclosed file .*lost"):
        end()
    end()
    kept.file.close()
    end()
