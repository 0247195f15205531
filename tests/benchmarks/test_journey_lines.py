"""The counts of docs/journeys.md: agentkit's column is what the program counts, and no journey is long."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| \[[^|]*\]\(\.\./examples/journeys/(\w+\.\w+)\) \| (\d+)", re.MULTILINE)


def _counter():
    spec = importlib.util.spec_from_file_location("journey_lines", ROOT / "benchmarks" / "journey_lines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_the_lines_that_are_counted():
    pytest.importorskip("ruff")  # Of the extra dev.
    counter = _counter()
    said = {name: int(lines) for name, lines in ROW.findall((ROOT / "docs" / "journeys.md").read_text())}
    scripts = sorted((ROOT / "examples" / "journeys").glob("*.*"))
    assert sorted(said) == [path.name for path in scripts]
    counted = {path.name: counter.count_lines_of(str(path)) for path in scripts}
    assert said == counted and max(counted.values()) <= 15


def test_where_lines_are_broken_does_not_count_and_an_environment_neither():
    pytest.importorskip("ruff")
    counter = _counter()
    short = "import a\n\nprint(a.b(1, 2))\n"
    environment = "class Mine(a.Env):\n    x = 1\n\n\n"
    long = f'"""Says."""\n# Why.\nimport a\n{environment}print(\n    a.b(\n        1,\n        2,\n    )\n)\n'
    assert counter.count_lines(short) == counter.count_lines(long) == 2
    assert counter.count_lines(short + "class Agent:\n    x = 1\n") == 4
