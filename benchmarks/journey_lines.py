"""Counts the lines of the scripts that docs/journeys.md compares: ``python benchmarks/journey_lines.py FILE ...``.

One rule for all: lines of code as ruff formats them in 120 columns, imports counted; without comments, blank lines,
docstrings and the class of an environment. Where a line was broken by its author does not matter so. ``FILE.md#2`` is
the third block of Python in a page, ``FILE.ipynb`` all code cells of a notebook, ``FILE.toml`` its lines.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

_FORMAT = (
    sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=120",
    "--config=format.skip-magic-trailing-comma=true", "-",
)  # fmt: skip
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read_source(name: str) -> str:
    """Returns the Python of a file, of a page's block or of a notebook's cells, without a notebook's own commands."""
    path, _, block = name.partition("#")
    text = Path(path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        cells = ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        return re.sub(r"^[%!].*$", "", "\n".join(cells), flags=re.MULTILINE)
    return _BLOCK.findall(text)[int(block)] if block else text


def count_lines(source: str) -> int:
    """Returns the lines of a script.

    >>> count_lines("'''Adds.'''\\nimport math  # A comment.\\n\\nprint(\\n    math.pi,\\n)")
    2
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [inner for inner in node.body if not _is_left_out(inner)]
    formatted = subprocess.run(_FORMAT, input=ast.unparse(tree), capture_output=True, text=True, check=True).stdout
    return _filled(formatted)


def _filled(text: str) -> int:
    return sum(bool(line.strip()) and not line.startswith("#") for line in text.splitlines())


def count_lines_of(name: str) -> int:
    """Returns the lines of a file, see above."""
    source = read_source(name)
    return _filled(source) if name.endswith(".toml") else count_lines(source)


def _is_left_out(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).rpartition(".")[2] == "Env" for base in node.bases)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main() -> None:
    """Prints a line for each file that is named."""
    for name in sys.argv[1:]:
        print(f"{count_lines_of(name):5}  {name}")


if __name__ == "__main__":
    main()
