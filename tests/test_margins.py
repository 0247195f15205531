"""What learning tests note of their returns, and the file that keeps it."""

import os
import pathlib

import pytest

from agentkit.testing import learning
from agentkit.testing.learning import check_returns
from tests import margins


def test_a_check_is_noted_whether_it_fails_or_not_and_takes_the_place_of_the_last(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert margins.MARGINS_VARIABLE == learning.MARGINS_VARIABLE
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    file = tmp_path / "margins.csv"
    margins.write(file, [("a.py::test_old", "newest", "1", "2", "2 3"), ("a.py::test_new", "reverb", "1", "1", "1 1")])
    monkeypatch.delenv(margins.MARGINS_VARIABLE, raising=False)
    check_returns([1.0], 0.5, [0], "9 steps")  # Nobody asked for it.
    plugin = margins.Margins(file)
    worker = margins.Margins(file)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a.py::test_new[x, y z] (call)")
    check_returns([1.0, 0.83333333], 0.8, [0, 1], "9 steps")
    with pytest.raises(AssertionError, match=r"at least 0\.8 from every seed after 9 steps, found seed 0: 0\.5\."):
        check_returns([0.5], 0.8, [0], "9 steps")
    worker.pytest_sessionfinish()
    plugin.pytest_sessionfinish()
    assert margins.MARGINS_VARIABLE not in os.environ
    expected = [
        ("a.py::test_new", "reverb", "1", "1", "1 1"),
        ("a.py::test_new[x, y z]", "newest", "0.8", "0.8333", "1 0.8333"),
        ("a.py::test_new[x, y z]", "newest", "0.8", "0.5", "0.5"),
        ("a.py::test_old", "newest", "1", "2", "2 3"),
    ]
    assert margins.read(file) == expected
    assert margins.merge(expected, expected[1:2]) == [expected[0], expected[1], expected[3]]


def test_a_return_that_is_no_number_falls_short() -> None:
    with pytest.raises(AssertionError, match="found seed 0: 500, seed 1: nan, seed 2: 500"):
        check_returns([500.0, float("nan"), 500.0], 1.0, range(3), "9 steps")
