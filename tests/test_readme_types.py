"""README's Python example, the pages' snippets and the research edits, as a type checker sees them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_stack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/agents/sac.md", "docs/agents/dqn.md", "docs/offline.md"]
EDITS = sorted((ROOT / "examples" / "edits").glob("*.py"))


def snippets(text: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def errors(folder: Path, sources: dict[str, str]) -> list[str]:
    """What mypy finds in files of these texts, as a user's mypy reads them; not what it finds in agentkit."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    files = [str(folder / f"{name}.py") for name in sources]
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(folder / "cache")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(str(folder)) and "error:" in line]


def test_snippets_pass_mypy_and_a_wrong_one_does_not(tmp_path):
    sources = {
        f"{Path(page).stem.lower()}_{i}": source
        for page in PAGES
        for i, source in enumerate(snippets((ROOT / page).read_text()))
    }
    sources |= {path.stem: path.read_text() for path in EDITS if path.stem != "__init__"}
    assert len(sources) >= len(PAGES) + 8
    # Snippets have no annotations: their functions are not asked for any.
    header = "# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False\n"
    wrong = "import agentkit\nagentkit.ExperimentConfig(1, 'agentkit:catch', 1)\n"
    found = errors(tmp_path, {**{name: header + source for name, source in sources.items()}, "wrong": wrong})
    assert [line for line in found if "/wrong.py" not in line] == []
    assert len(found) == 1 and "arg-type" in found[0]
