"""The journey to an environment of one's own: short, and it learns."""

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "journeys" / "own_environment.py"


def lines_of_code(path):
    """Non-blank lines without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return len(ast.unparse(tree).replace("\n\n", "\n").strip().splitlines())


@pytest.mark.full
def test_an_own_gymnasium_class(tmp_path):
    pytest.importorskip("gymnasium")
    assert lines_of_code(SCRIPT) <= 15
    path = dict(os.environ, PYTHONPATH=str(SCRIPT.parents[2]))
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, env=path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    returns = json.loads(ended.stdout.strip().splitlines()[-1])
    # The best way from an error of five degrees costs 15 or so; to wait costs 150.
    assert len(returns) == 20 and sum(returns) / 20 > -40
