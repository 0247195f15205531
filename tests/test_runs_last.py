"""Slow tests and further cases come last, and not at all once their time is up."""

import os
import subprocess
import sys
import time

ONE = "tests/test_errors.py::test_unknown_name_proposes_nothing_far_off"
CASES = "tests/examples/test_plans.py::test_fits_on_a_page_and_is_in_the_table"
SLOW = "tests/examples/test_notebooks.py::test_each_notebook_has_the_outputs_of_a_whole_run[first_run]"


def test_what_may_be_left_out_is_last_and_skipped_once_its_time_is_up() -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--later-until"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    lines = {}
    for until in (time.time(), time.time() + 600):
        arguments = [*command, str(until), SLOW, CASES, ONE]
        found = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stdout + found.stderr
        lines[until] = [line.split()[1] for line in found.stdout.splitlines() if "::test" in line]
    num_later = len(lines[until]) - 2
    assert num_later > 3
    assert list(lines.values()) == [["PASSED"] * 2 + ["SKIPPED"] * num_later, ["PASSED"] * (2 + num_later)]
