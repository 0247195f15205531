"""docs/rows.md: each row is there once, with a state, files and tests that exist, and the counts are right.

docs/faults.md: its tests exist.
"""

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "rows.md"
STATES = ("works", "partial", "absent", "different")
UNTESTED = {"P2"}  # A table of results.


class Row(NamedTuple):
    name: str
    what: str
    state: str
    where: list[str]
    tests: list[str]
    note: str


def read(text: str) -> dict[str, list[Row]]:
    """The rows under each heading."""
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")][2:]
        cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
        found[part.splitlines()[0]] = [
            Row(name, what, state, re.findall(r"`(.*?)`", where), re.findall(r"`(.*?)`", tests), note)
            for name, what, state, where, tests, note in cells
        ]
    return found


@functools.cache
def names_of(path: Path) -> set[str]:
    """Test functions and classes of a file."""
    nodes = ast.parse(path.read_text()).body
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return {name for name in names if name.startswith(("test_", "Test"))}


def faults(row: Row) -> list[str]:
    """What is wrong with a row."""
    found = [f"{path} does not exist" for path in row.where if not (ROOT / path).is_file()]
    for test in row.tests:
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or name not in names_of(ROOT / file):
            found.append(f"there is no test {test}")
    if row.state not in STATES:
        found.append(f"the state is {row.state!r}")
    if row.state != "absent" and not (row.where and (row.tests or row.name in UNTESTED)):
        found.append("no file, or no test")
    return [f"{row.name}: {fault}" for fault in found]


def test_each_row_is_there_once_and_counted():
    names = [row.name for rows in read(PAGE.read_text()).values() for row in rows]
    assert len(set(names)) == len(names) and f"These are {len(names)} behaviours" in PAGE.read_text()


def test_rows_name_what_exists():
    assert [fault for rows in read(PAGE.read_text()).values() for row in rows for fault in faults(row)] == []


def missing_tests(text: str) -> list[str]:
    """Tests that a page of faults names in its second column, as paths below tests/ or below the repository."""
    cells = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    named = [test for cell in cells for test in re.findall(r"`(.*?)`", cell)]
    return [test for test in named if not exists(*test.partition("::")[::2])]


def exists(path: str, name: str) -> bool:
    """Whether there is such a file, and such a test in it where one is named."""
    files = [folder / path for folder in (ROOT / "tests", ROOT) if (folder / path).is_file()]
    return bool(files) and (not name or name in names_of(files[0]))


def test_faults_name_tests_that_exist():
    text = (ROOT / "docs" / "faults.md").read_text()
    assert text.count("`test_") + text.count("/test_") > 100 and missing_tests(text) == []


def test_a_fault_whose_test_is_gone_is_found():
    text = "| a | `test_rows.py`*, `test_rows.py::test_gone`, `gone.toml` | b | `c.py` |\n| a | none | b | c |\n"
    assert missing_tests(text) == ["test_rows.py::test_gone", "gone.toml"]


def test_the_counts_are_those_of_the_rows():
    text = PAGE.read_text()
    counts = [[title, Counter(row.state for row in rows)] for title, rows in read(text).items()]
    counts.append(["in all", sum((count for _, count in counts), Counter())])
    shown = [
        line.replace("*", "").strip("| ").split(" | ") for line in text.split("\n## ")[0].splitlines() if "|" in line
    ]
    assert [[title, *map(int, numbers)] for title, *numbers in shown[2:]] == [
        [title, *(count[state] for state in STATES)] for title, count in counts
    ]


def test_bad_rows_are_found():
    good = Row("A1", "x", "works", ["docs/rows.md"], ["tests/test_rows.py::test_bad_rows_are_found"], "")
    assert faults(good) == []
    for change in (
        {"state": "worked"},
        {"where": []},
        {"where": ["docs/row.md"]},
        {"tests": []},
        {"tests": ["tests/test_rows.py::test_good_rows_are_found"]},
        {"tests": ["tests/test_row.py::test_bad_rows_are_found"]},
        {"tests": ["tests/test_rows.py::faults"]},
    ):
        assert len(faults(good._replace(**change))) == 1, change
    text = "## Title\n\n| id |\n|---|\n| A1 | x y | partial | `a.py`, `b.py` | `t.py::test_a` | why |\n"
    assert read(text) == {"Title": [Row("A1", "x y", "partial", ["a.py", "b.py"], ["t.py::test_a"], "why")]}
