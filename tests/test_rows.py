"""docs/rows.md: each row is there once, with a state, a reason where it needs one, and files and tests that exist."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "rows.md"
STATES = ("works", "partial", "absent", "different")
LAST = {"A": 19, "T": 38, "P": 20, "R": 42, "C": 17}
IDS = [f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)]
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
    if not row.what:
        found.append("it does not say what it is")
    if row.state == "absent" and "not built" not in row.note:
        found.append("the note does not say that it is not built")
    if row.state in STATES[1:] and not row.note:
        found.append("no reason")
    if row.state != "absent" and not (row.where and (row.tests or row.name in UNTESTED)):
        found.append("no file, or no test")
    return [f"{row.name}: {fault}" for fault in found]


def test_each_row_is_there_once_in_its_order():
    assert [row.name for rows in read(PAGE.read_text()).values() for row in rows] == IDS
    assert len(IDS) == 136


def test_rows_name_what_exists():
    assert [fault for rows in read(PAGE.read_text()).values() for row in rows for fault in faults(row)] == []


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
        {"what": ""},
        {"where": []},
        {"where": ["docs/row.md"]},
        {"tests": []},
        {"tests": ["tests/test_rows.py::test_good_rows_are_found"]},
        {"tests": ["tests/test_row.py::test_bad_rows_are_found"]},
        {"tests": ["tests/test_rows.py::faults"]},
        {"state": "different"},
        {"state": "absent", "note": "later"},
    ):
        assert len(faults(good._replace(**change))) == 1, change
    text = "## Title\n\n| id |\n|---|\n| A1 | x y | partial | `a.py`, `b.py` | `t.py::test_a` | why |\n"
    assert read(text) == {"Title": [Row("A1", "x y", "partial", ["a.py", "b.py"], ["t.py::test_a"], "why")]}
