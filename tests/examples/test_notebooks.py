"""Every notebook runs from its first cell to its last, and the site can show it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

# One process for all: most of a short notebook's time is the start of Python and JAX.
RUNNER = """
import json, os, pathlib, sys
for path in sys.argv[1:]:
    folder = pathlib.Path(path).stem
    os.mkdir(folder)
    os.chdir(folder)
    space = {"__name__": "notebook"}
    for number, cell in enumerate(json.load(open(path))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path}, cell {number}", "exec"), space)
    os.chdir("..")
    print("ran", folder, flush=True)
"""


def stored(cells: list[dict]) -> tuple[int, list[str]]:
    """How many pictures the cells have stored, and which errors."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return pictures, [output["ename"] for output in outputs if output["output_type"] == "error"]


def test_the_notebooks_run(tmp_path):
    assert len(NOTEBOOKS) >= 5
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, NOTEBOOKS)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")] == [
        p.stem for p in NOTEBOOKS
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_has_the_outputs_of_a_whole_run(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["source"][0].startswith("# ")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert code[-1]["outputs"], "The last cell shows nothing."
    pictures, errors = stored(cells)
    assert not errors and pictures == sum("plt.subplots" in "".join(cell["source"]) for cell in code)
